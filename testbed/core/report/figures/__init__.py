"""The plots and drawings of the HTML pages."""
