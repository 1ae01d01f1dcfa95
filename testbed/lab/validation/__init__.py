"""A collective library put to the test in a certified lab; ``run.py`` tells the whole story."""
