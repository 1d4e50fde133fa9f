"""The routes, one module a subject. Each asks the desk and nothing else; FastAPI runs them in threads."""

from farm.http.routes import access, events, jobs, joining, limits, nodes, overview, tasks

ROUTERS = (
    overview.router,
    limits.router,
    jobs.router,
    tasks.router,
    nodes.router,
    joining.router,
    events.router,
    access.router,
)
