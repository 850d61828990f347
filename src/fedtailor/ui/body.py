"""What a request carries, up to a limit."""

from urllib.parse import parse_qs

from starlette.requests import Request

from .models import too_large

FORM_BYTES = 100_000


async def limited(request: Request, most: int) -> bytes:
    """A request's body, unless it is too long; then reading ends at once."""
    parts, count = [], int(request.headers.get("content-length") or 0)
    if count > most:
        raise too_large(count)
    count = 0
    async for part in request.stream():
        count += len(part)
        if count > most:
            raise too_large(count)
        parts.append(part)
    return b"".join(parts)


async def fields(request: Request) -> dict[str, str]:
    body = await limited(request, FORM_BYTES)
    return {key: values[-1] for key, values in parse_qs(body.decode(errors="replace")).items()}
