"""What people do with schedules and runs, one file per noun: the methods that the scheduler is put together from."""
