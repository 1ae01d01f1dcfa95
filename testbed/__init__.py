"""Scale-across training testbed: real collectives over emulated fiber that is measured before it is believed."""

__version__ = "0.1.0"
