"""The process: its listeners and services, the HTTP server, and how it starts and stops."""
