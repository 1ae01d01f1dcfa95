"""Another host over SSH: what ssh's own configuration and known_hosts files say of it; nothing here connects."""
