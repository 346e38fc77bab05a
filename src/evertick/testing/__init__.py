"""What tests of jobs and stores are made with."""
