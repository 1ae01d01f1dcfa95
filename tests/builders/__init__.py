"""Records, run directories, jobs, machines and fakes that tests are made from."""
