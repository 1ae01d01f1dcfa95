"""Emulators: give a link the properties of a fiber, by the kernel's netem or by fiberd."""
