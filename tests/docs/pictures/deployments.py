"""The shapes of deployment: one process, several on one file, a fleet on PostgreSQL, a daemon with outside workers."""

from __future__ import annotations

from pictures.drawing import Box, Canvas

__all__ = ["draw"]

_PANEL_WIDTH, _PANEL_HEIGHT, _SPACE = 424, 268, 12


def draw() -> str:
    width, height = 2 * _PANEL_WIDTH + 3 * _SPACE, 2 * _PANEL_HEIGHT + 3 * _SPACE
    canvas = Canvas(
        width,
        height,
        "Shapes of deployment",
        "One process with a SQLite file. Several processes on one SQLite file. A fleet of machines on PostgreSQL. "
        "A daemon that runs shell commands and HTTP requests and dispatches jobs to a queue for outside workers.",
    )
    places = [
        (_SPACE + column * (_PANEL_WIDTH + _SPACE), _SPACE + row * (_PANEL_HEIGHT + _SPACE))
        for row in range(2)
        for column in range(2)
    ]
    for draw_panel, (x, y) in zip((_one_process, _several, _fleet, _daemon), places, strict=True):
        canvas.panel(x, y, _PANEL_WIDTH, _PANEL_HEIGHT)
        draw_panel(canvas, x, y)
    return canvas.svg()


def _heads(canvas: Canvas, x: float, y: float, title: str, words: str) -> None:
    canvas.text(x + 18, y + 30, title, "ink title")
    canvas.text(x + 18, y + 50, words, "soft small")


def _one_process(canvas: Canvas, x: float, y: float) -> None:
    _heads(canvas, x, y, "One process", "The scheduler runs in your program. No server.")
    program = Box(x + 104, y + 150, 172, 128)
    canvas.box(program, "end", "", [])
    canvas.text(program.x, program.top + 24, "your program", "ink bold middle")
    node = Box(program.x, program.y + 20, 140, 62)
    canvas.box(node, "main", "Scheduler", ["node: engine, jobs"])
    file = Box(x + 336, y + 170, 140, 76)
    canvas.cylinder(file, "SQLite", ["evertick.db"])
    canvas.arrow([(node.right, node.y), (file.left, node.y)], is_double=True)
    canvas.text(file.x, y + _PANEL_HEIGHT - 18, "Scheduler()", "soft small middle mono")


def _several(canvas: Canvas, x: float, y: float) -> None:
    _heads(canvas, x, y, "Several processes, one file", "Each fire runs once, in one of them.")
    file = Box(x + 336, y + 160, 140, 76)
    for number in range(3):
        node = Box(x + 100, y + 94 + 66 * number, 164, 52)
        canvas.box(node, "main", f"web worker {number + 1}", ["node"])
        _to_store(canvas, node, file, (number - 1) * 18.0)
    canvas.cylinder(file, "SQLite", ["on a local disk"])
    canvas.text(file.x, y + _PANEL_HEIGHT - 18, "sqlite:///shop.db", "soft small middle mono")


def _fleet(canvas: Canvas, x: float, y: float) -> None:
    _heads(canvas, x, y, "A fleet on PostgreSQL", "If a node dies, others take over its runs. No leader.")
    store = Box(x + 336, y + 160, 140, 88)
    for number in range(3):
        node = Box(x + 100, y + 94 + 66 * number, 164, 52)
        canvas.box(node, "main", f"machine {number + 1}", ["nodes"])
        _to_store(canvas, node, store, (number - 1) * 18.0)
    canvas.cylinder(store, "PostgreSQL", ["schema evertick"])
    canvas.text(store.x, y + _PANEL_HEIGHT - 18, "postgresql://…", "soft small middle mono")


def _to_store(canvas: Canvas, node: Box, store: Box, offset: float) -> None:
    start, end = (node.right, node.y), (store.left, store.y + offset)
    bend = node.right + 40
    corners = [] if start[1] == end[1] else [(bend, start[1]), (bend, end[1])]
    canvas.arrow([start, *corners, end], is_double=True)


def _daemon(canvas: Canvas, x: float, y: float) -> None:
    _heads(canvas, x, y, "A daemon and outside workers", "Jobs in a file. Workers in any language.")
    daemon, store = Box(x + 92, y + 110, 148, 62), Box(x + 92, y + 212, 148, 66)
    canvas.arrow([(daemon.x, daemon.bottom), (daemon.x, store.top)], is_double=True)
    for title, job in (
        ("shell command", Box(x + 310, y + 92, 202, 30)),
        ("HTTP request", Box(x + 310, y + 130, 202, 30)),
    ):
        canvas.arrow([(daemon.right, job.y), (job.left, job.y)])
        canvas.box(job, "other", title, [])
    queue, workers = Box(x + 253, y + 206, 88, 54), Box(x + 369, y + 206, 84, 54)
    canvas.arrow(
        [(144 + x, daemon.bottom), (144 + x, 164 + y), (queue.x, 164 + y), (queue.x, queue.top)], is_double=True
    )
    canvas.arrow([(queue.right, queue.y), (workers.left, queue.y)], is_double=True)
    canvas.box(daemon, "main", "daemon", ["evertick.toml"])
    canvas.cylinder(store, "SQLite", ["or PostgreSQL"])
    canvas.box(queue, "other", "queue", ["Redis, NATS"])
    canvas.box(workers, "end", "workers", ["outside"])
    canvas.text(x + 310, y + _PANEL_HEIGHT - 18, "jobs go out, reports come back", "soft small middle")
