# SPDX-License-Identifier: Apache-2.0
"""What the commands share: arguments, exit codes, signals, one JSON object at the end.

Standard output carries data or that object and nothing else; messages go to standard error. Exit
codes: 0 done; 1 another failure; 2 usage; 3 cannot connect; 4 the connection was lost or the peer
refused; 5 a checksum differs; 6 local input or output; 77 no capability for raw sockets; 130 and
143 ended by SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import enum
import itertools
import json
import logging
import math
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

import mrc
from mrc.config import Config
from mrc.control import DEFAULT_PORT, parse_target, parse_targets
from mrc.errors import (
    CapabilityError,
    ConfigError,
    ConnectionClosed,
    ConnectRefused,
    ConnectTimeout,
    HandshakeError,
    ProtocolError,
)
from mrc.topology_file import load

if TYPE_CHECKING:
    from mrc.connection import Connection
    from mrc.listener import Listener

__all__ = [
    "CommandError",
    "ExitCode",
    "Parser",
    "Result",
    "add_common_arguments",
    "add_deny_argument",
    "add_listen_argument",
    "close_timeout",
    "config_from",
    "connecting",
    "describe",
    "exit_code",
    "inform",
    "listen_address",
    "listening",
    "planes_from",
    "positive_seconds",
    "printable",
    "ratio",
    "refuse_clashes",
    "run",
    "say",
    "size_in_bytes",
    "target",
    "targets_from",
    "write_out",
]

SCHEMA_VERSION: Final = 1

Result = dict[str, Any]
"""What `--json` prints: filled by a command as it goes, so that an interrupted one has some."""


class ExitCode(enum.IntEnum):
    """Why a command ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONNECT = 3
    LOST = 4
    INTEGRITY = 5
    LOCAL_IO = 6
    CAPABILITY = 77
    INTERRUPTED = 130
    TERMINATED = 143


class CommandError(Exception):
    """A command cannot go on; the message is for the user.

    Attributes:
        exit_code: What the process ends with.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.exit_code = code


_EXIT_CODES: Final[tuple[tuple[type[BaseException], ExitCode], ...]] = (
    # The library's exceptions are builtin ones too: they come before OSError.
    (CapabilityError, ExitCode.CAPABILITY),
    (ConfigError, ExitCode.USAGE),
    (ConnectTimeout, ExitCode.CONNECT),
    (ConnectRefused, ExitCode.CONNECT),
    (HandshakeError, ExitCode.CONNECT),
    (ConnectionClosed, ExitCode.LOST),
    (ProtocolError, ExitCode.LOST),
    (OSError, ExitCode.LOCAL_IO),
)


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that an exception stands for."""
    if isinstance(error, CommandError):
        return error.exit_code
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED


def describe(error: BaseException) -> str:
    """One line about an exception, for people."""
    if isinstance(error, OSError) and error.strerror:
        named = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        text = f"{named}{error.strerror}"
    elif exit_code(error) is ExitCode.FAILED and not isinstance(error, CommandError):
        text = f"{type(error).__name__}: {error}"
    elif isinstance(error, ConnectionClosed):
        text = f"connection lost: {error}"
    else:
        text = str(error) or type(error).__name__
    return printable(text)


def printable(text: str) -> str:
    """Text of another host made harmless to a terminal: no control characters, one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(command: str, message: str) -> None:
    """Prints a message of a command on standard error."""
    try:
        print(f"{command}: {message}", file=sys.stderr, flush=True)
    except OSError:  # nobody listens: no reason to stop
        _give_up(sys.stderr)


def inform(arguments: argparse.Namespace, message: str) -> None:
    """Says what is no complaint, unless `--quiet`."""
    if not arguments.quiet:
        say(arguments.command, message)


def _give_up(stream: TextIO) -> None:
    """Sends what a stream still holds nowhere: Python flushes once more at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def write_out(text: str) -> None:
    """Prints lines on standard output.

    Raises:
        OSError: Nobody takes them.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _give_up(sys.stdout)
        raise OSError(error.errno, error.strerror, "standard output") from None


def ratio(part: float, whole: float, *, digits: int = 6) -> float | None:
    """A quotient that JSON can hold; None where there is none."""
    value = part / whole if whole else math.nan
    return round(value, digits) if math.isfinite(value) else None


# Arguments.


_EXIT_CODES_HELP: Final = (
    "Exit codes: 0 done; 1 other failure; 2 usage; 3 cannot connect; 4 connection lost or refused "
    "by the peer; 5 checksum differs; 6 local input or output; 77 raw sockets not permitted; "
    "130, 143 interrupted."
)


class Parser(argparse.ArgumentParser):
    """Raises CommandError instead of leaving, so that `--json` holds for usage errors too."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog, description=description, epilog=_EXIT_CODES_HELP, allow_abbrev=False
        )
        self.set_defaults(command=prog)
        self.add_argument(
            "--json",
            action="store_true",
            help="print one JSON object on standard output at the end",
        )
        self.add_argument("--version", action="version", version=f"%(prog)s {mrc.__version__}")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Prints help or version; argparse would hide that nobody takes it."""
        write_out(message.rstrip("\n"))

    def error(self, message: str) -> NoReturn:
        """Reports a usage error."""
        usage = " ".join(self.format_usage().split())
        raise CommandError(ExitCode.USAGE, f"{message} ({usage})")


_UNITS: Final[dict[str, int]] = {
    "": 1,
    **{letter: 1 << 10 * power for power, letter in enumerate("KMG", 1)},
    **{f"{letter}iB": 1 << 10 * power for power, letter in enumerate("KMG", 1)},
    **{f"{letter}B": int(1000**power) for power, letter in enumerate("KMG", 1)},
}


def size_in_bytes(text: str) -> int:
    """Reads `4096`, `64K`, `64KiB` (1024 bytes each) or `64KB` (1000)."""
    match = re.fullmatch(r"(\d{1,15})([KMG]?(?:iB|B)?)", text)
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 64K or 4MiB")
    return int(match[1]) * _UNITS[match[2]]


def positive_seconds(text: str) -> float:
    """Reads a time of more than 0 and at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of 0 to 86400 seconds")
    return value


def target(text: str) -> str:
    """Reads `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`."""
    try:
        parse_targets(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def listen_address(text: str) -> tuple[str | None, int]:
    """Reads `ADDR`, `ADDR:PORT`, `[ADDR]:PORT` or `:PORT`; no address means all."""
    everywhere = re.fullmatch(r":\d+", text) is not None
    try:
        host, port = parse_target(f"all{text}" if everywhere else text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return None if everywhere else host, port


def _plane_names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("names no interface")
    return names


def add_common_arguments(parser: argparse.ArgumentParser, *, topology: str | None = None) -> None:
    """Adds what every command has.

    Args:
        parser: To it.
        topology: The file that a command takes unless it is told of another one.
    """
    parser.add_argument(
        "--planes",
        type=_plane_names,
        metavar="[ID=]IF[/ADDR],...",
        help="interfaces to use as planes, with commas (default: all that can be one)",
    )
    parser.add_argument(
        "--mtu",
        type=int,
        default=0,
        metavar="BYTES",
        choices=(0, 1024, 2048, 4096, 8192),
        help="most payload of a packet: 1024, 2048, 4096, 8192 (default: the most that fits)",
    )
    parser.add_argument(
        "--udp-port",
        type=int,
        default=DEFAULT_PORT,
        metavar="PORT",
        help=f"UDP port of the data packets, the same on both sides (default {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--topology",
        default=topology,
        metavar="FILE",
        help="the fabric, as mrc-paths reads it: name the way of each packet, as its routing says "
        f"(default: {topology or 'let the switches choose'})",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="say of every interface why it is a plane or not, and what befalls the paths",
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="say nothing but what goes wrong"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done with which planes, and leave"
    )


def _denials(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("names no path, switch or link")
    return names


def add_deny_argument(parser: argparse.ArgumentParser) -> None:
    """Adds what a command that carries data has."""
    parser.add_argument(
        "--deny",
        type=_denials,
        action="extend",
        default=[],
        metavar="EV|SWITCH|LINK[@PLANE],...",
        help="send no data by these: the path of an entropy value, or of the topology a switch or "
        "a link, as t1a, t0a-t1a@1",
    )


def add_listen_argument(parser: argparse.ArgumentParser) -> None:
    """Adds what a listening command has."""
    parser.add_argument(
        "--listen",
        type=listen_address,
        default=(None, DEFAULT_PORT),
        metavar="ADDR[:PORT]",
        help=f"where the set-up is accepted by TCP (default: every address, port {DEFAULT_PORT})",
    )
    parser.add_argument("--once", action="store_true", help="end after the first connection")


def config_from(arguments: argparse.Namespace) -> Config:
    """The settings that the common arguments ask for.

    Raises:
        ConfigError: One is out of range, or the topology is wrong.
        OSError: The topology cannot be read.
    """
    if arguments.topology is None:
        return Config(mtu=arguments.mtu, udp_port=arguments.udp_port)
    return Config(
        mtu=arguments.mtu,
        udp_port=arguments.udp_port,
        routing=load(arguments.topology).routing,
        topology=arguments.topology,
    )


def targets_from(arguments: argparse.Namespace, text: str) -> list[str]:
    """Where a host is reached: at its addresses if the topology has one of this name.

    Raises:
        ConfigError: The topology is wrong.
        OSError: The topology cannot be read.
    """
    if arguments.topology is None:
        return [text]
    host, port = parse_target(text)
    topology = load(arguments.topology)
    if host not in {each.name for each in topology.hosts}:
        return [text]
    return [f"[{topology.address(host, plane)}]:{port}" for plane in range(topology.planes)]


def planes_from(arguments: argparse.Namespace) -> Sequence[str] | None:
    """The named planes; None: they are to be found."""
    planes: list[str] | None = arguments.planes
    return planes


def refuse_clashes(clashes: dict[str, bool]) -> None:
    """Refuses arguments that do not go together.

    Args:
        clashes: What is wrong, in words that name the arguments; whether it is.

    Raises:
        CommandError: Something is.
    """
    for what, applies in clashes.items():
        if applies:
            raise CommandError(ExitCode.USAGE, what)


@contextlib.asynccontextmanager
async def listening(arguments: argparse.Namespace) -> AsyncIterator[Listener]:
    """A listener as the arguments say.

    Raises:
        CommandError: It cannot listen there; says where.
        MRCError, OSError: As `Endpoint.start`.
    """
    host, port = arguments.listen
    async with mrc.Endpoint(planes_from(arguments), config_from(arguments)) as endpoint:
        for each in arguments.deny:
            endpoint.deny(each)
        listener = endpoint.listen(host, port)
        try:
            await listener.start()
        except OSError as error:
            where = f"port {port}" if host is None else f"{host} port {port}"
            text = f"cannot listen on {where}: {error.strerror or error}"
            raise CommandError(exit_code(error), text) from None
        async with listener:
            yield listener


@contextlib.asynccontextmanager
async def connecting(
    arguments: argparse.Namespace, *, patience: float = 10.0
) -> AsyncIterator[Connection]:
    """A connection to `arguments.target`, as the arguments say.

    Args:
        arguments: Of the command.
        patience: Longest wait, seconds.

    Raises:
        ConfigError: What is denied is not there.
        MRCError, OSError: As `mrc.connect`.
    """
    async with mrc.connect(
        targets_from(arguments, arguments.target),
        planes=planes_from(arguments),
        config=config_from(arguments),
        timeout=patience,
    ) as connection:
        for each in arguments.deny:
            connection.deny(each)
        yield connection


def close_timeout(*, failed: bool) -> float:
    """How long closing a connection may take, in seconds."""
    return 2.0 if failed else 10.0


# Running.

Work = Callable[[argparse.Namespace, Result], Awaitable[None]]


class _Interrupted(CommandError):
    """A signal asked the command to end."""

    def __init__(self, number: int) -> None:
        code = ExitCode.TERMINATED if number == signal.SIGTERM else ExitCode.INTERRUPTED
        super().__init__(code, "interrupted" if number == signal.SIGINT else "terminated")


async def _until_signal(work: Work, arguments: argparse.Namespace, result: Result) -> None:
    """Runs a command; the first signal cancels it, a second one kills."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work(arguments, result))
    numbers = (signal.SIGINT, signal.SIGTERM)
    caught: list[int] = []

    def on_signal(number: int) -> None:
        caught.append(number)
        task.cancel()
        for each in numbers:
            loop.remove_signal_handler(each)

    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        await task
    except BaseException:
        # Whatever cleaning up ran into: the signal is why.
        if caught:
            raise _Interrupted(caught[0]) from None
        raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop  # noqa: PLC0415  (not for --help)

    return uvloop.new_event_loop()


def _execute(work: Work, arguments: argparse.Namespace, result: Result) -> None:
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_until_signal(work, arguments, result))


def _open_standard_streams() -> None:
    """Gives closed standard streams a place, or a socket would get their numbers, and our words.

    Reading a closed standard input and writing to a closed standard output must still fail.
    """
    for fd, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False, errors="backslashreplace")


def run(parser: Parser, work: Work, argv: Sequence[str] | None = None) -> int:
    """Runs a command from its arguments to its exit code.

    Args:
        parser: Its arguments.
        work: The command itself; fills the result and raises what goes wrong.
        argv: Arguments; None: those of the process.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    result: Result = {"schema_version": SCHEMA_VERSION, "command": parser.prog, "error": None}
    _open_standard_streams()
    logging.basicConfig(format=f"{parser.prog}: %(message)s", level=logging.WARNING)
    code = ExitCode.OK
    try:
        _execute(work, parser.parse_args(words), result)
    except KeyboardInterrupt:
        code, result["error"] = ExitCode.INTERRUPTED, "interrupted"
    except Exception as error:
        code, result["error"] = exit_code(error), describe(error)
        logging.getLogger("mrc.cli").debug("why", exc_info=True)
    if result["error"] is not None:
        say(parser.prog, result["error"])
    result["exit_code"] = int(code)
    if "--json" in itertools.takewhile("--".__ne__, words):
        try:
            write_out(json.dumps(result, allow_nan=False))
        except OSError as error:
            say(parser.prog, describe(error))
            code = code or ExitCode.LOCAL_IO
    return int(code)
