"""The run as a document, figures and pages."""
