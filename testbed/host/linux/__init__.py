"""The kernel as it is: namespaces, interfaces, processes and control groups."""
