"""A local server to watch, compare, start and stop runs, and to show pictures to a tuned model: `fedtailor ui`.

Starlette answers, uvicorn listens on loopback alone. Pages are those of a report, kept up to date (report/page).
"""
