"""The web console: a page that the hub serves on its HTTP port, and what that page needs besides the admin verbs."""
