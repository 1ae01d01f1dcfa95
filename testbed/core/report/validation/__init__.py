"""The result of ``testbed validate`` as a page, Markdown and JUnit XML."""
