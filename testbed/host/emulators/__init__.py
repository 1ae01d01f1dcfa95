"""Emulators: what makes a cable a fiber, the kernel's netem or our own fiberd."""
