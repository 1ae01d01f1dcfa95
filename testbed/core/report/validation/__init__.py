"""What ``testbed validate`` found, as a page, Markdown and JUnit XML."""
