"""Access to the Linux kernel: namespaces, interfaces, processes and control groups."""
