"""The planner over HTTP and for language models: what programs ask, the processes that compute it, and the routes."""
