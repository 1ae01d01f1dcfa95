"""A whole run: up, certify, train, inject, record, report, down."""
