"""The long-running services, put together: what each one watches, serves, leads and shuts down."""
