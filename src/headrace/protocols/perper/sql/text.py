"""What a statement says, as far as the hub must know it: which kind it is, and which tables and columns it changes.

Questions are DuckDB's to understand. Here they are only put into its words: names without quotes are in capitals, as in
Ignite, and `?` are numbered and say their type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from headrace.protocols.perper.errors import Refused
from headrace.protocols.perper.sql.kinds import Parameter
from headrace.units import natural

_TOKEN: Final = re.compile(
    r"""(?P<skipped>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[^\W\d][\w$]*)
      | (?P<parameter>\?\d*)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_QUESTIONS: Final = frozenset(("SELECT", "WITH", "VALUES", "FROM", "EXPLAIN", "DESCRIBE", "("))
NEAR_CHARACTERS: Final = 40

Argument = TypeVar("Argument")
Path = tuple[str, ...]
"""The name of a table, with or without its schema."""


class Token(NamedTuple):
    """A word of a statement."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """What it is called: in capitals, unless it is in quotes."""
        if self.kind == "quoted":
            return self.text[1:-1].replace('""', '"')
        return self.text.upper() if self.kind == "name" else self.text


Words = Sequence[Token]


@dataclass(frozen=True)
class Select:
    """A question."""

    words: Words


@dataclass(frozen=True)
class Insert:
    """New entries: `rows` of expressions, or the answer to a question. With `replaces`, what is there is replaced."""

    table: Path
    columns: list[str] | None
    rows: list[list[Words]]
    select: Words | None
    replaces: bool


@dataclass(frozen=True)
class Update:
    """Columns of those entries that `rest` is about get other values."""

    table: Path
    alias: str | None
    values: list[tuple[str, Words]]
    rest: Words


@dataclass(frozen=True)
class Delete:
    """Those entries that `rest` is about go."""

    table: Path
    alias: str | None
    rest: Words


@dataclass(frozen=True)
class ColumnDefinition:
    """A column of a table that is created."""

    name: str
    type_name: str
    precision: int = -1
    scale: int = -1
    not_null: bool = False
    default: Words | None = None


@dataclass(frozen=True)
class CreateTable:
    """A new cache with a query entity."""

    table: Path
    if_not_exists: bool
    columns: list[ColumnDefinition]
    primary_key: list[str]
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DropTable:
    """A cache goes, with all that is in it."""

    table: Path
    if_exists: bool


AnyStatement = Select | Insert | Update | Delete | CreateTable | DropTable


def failed_to_parse(reason: str) -> Refused:
    """A statement that cannot be read, or names what there is not, in Ignite's words."""
    return Refused(f"Failed to parse query. {reason}")


def tokens(text: str) -> list[Token]:
    """The words of a statement, without comments and without a semicolon at its end. Every `?` has its number."""
    found = []
    parameters = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "mark" and match[0] in "'\"":
            raise failed_to_parse(f"a quote that does not end: {text[match.start() :][:NEAR_CHARACTERS]}")
        if kind == "parameter":
            parameters += 1
            found.append(Token(kind, match[0] if len(match[0]) > 1 else f"?{parameters}", *match.span()))
        elif kind != "skipped":
            found.append(Token(kind or "", match[0], *match.span()))
    while found and found[-1].text == ";":
        found.pop()
    return found


def parse(text: str) -> AnyStatement:
    """What a statement is."""
    words = tokens(text)
    if not words:
        raise failed_to_parse("the statement is empty")
    if any(word.text == ";" for word in words):
        raise failed_to_parse("Multiple statements queries are not supported.")
    first = words[0].word
    if first in _QUESTIONS:
        return Select(words)
    parser = Parser(text, words)
    known: dict[str, Callable[[], AnyStatement]] = {
        "INSERT": parser.insert,
        "MERGE": parser.merge,
        "UPDATE": parser.update,
        "DELETE": parser.delete,
        "CREATE": parser.create,
        "DROP": parser.drop,
    }
    if first not in known:
        raise failed_to_parse(f"{first} is not supported here: only queries, INSERT, MERGE, UPDATE, DELETE, and tables")
    parser.take()
    statement = known[first]()
    parser.finish()
    return statement


class Parser:
    """Reads the words of a statement that changes something."""

    def __init__(self, text: str, words: Words) -> None:
        self._text = text
        self._words = words
        self._at = 0

    # words

    def _peek(self) -> str:
        token = self._words[self._at] if self._at < len(self._words) else None
        return "" if token is None or token.kind == "quoted" else token.word

    def take(self) -> Token:
        """The next word."""
        if self._at == len(self._words):
            raise failed_to_parse("the statement ends too early")
        self._at += 1
        return self._words[self._at - 1]

    def _accept(self, *words: str) -> bool:
        """Go past these words, if they are next."""
        following = self._words[self._at : self._at + len(words)]
        if tuple(token.word for token in following if token.kind != "quoted") != words:
            return False
        self._at += len(words)
        return True

    def _expect(self, *words: str) -> None:
        if not self._accept(*words):
            raise self._unexpected(" ".join(words))

    def _unexpected(self, wanted: str) -> Refused:
        token = self._words[self._at] if self._at < len(self._words) else None
        near = self._text[token.start :][:NEAR_CHARACTERS] if token else "the end"
        return failed_to_parse(f"Syntax error near {near!r}: {wanted} was expected")

    def _name(self) -> str:
        token = self.take()
        if token.kind not in ("name", "quoted"):
            self._at -= 1
            raise self._unexpected("a name")
        return token.word

    def _names(self) -> list[str]:
        """Names in parentheses. A comma may stand behind the last of them."""
        self._expect("(")
        names = []
        while not self._accept(")"):
            names.append(self._name())
            if not self._accept(","):
                self._expect(")")
                break
        return names

    def _path(self) -> Path:
        name = self._name()
        return (name, self._name()) if self._accept(".") else (name,)

    def _until(self, *ends: str) -> Words:
        """The words up to one of these, outside of parentheses."""
        start, depth = self._at, 0
        while self._at < len(self._words):
            word = self._peek()
            if depth == 0 and word in ends:
                break
            depth += (word == "(") - (word == ")")
            if depth < 0:
                break
            self._at += 1
        return self._words[start : self._at]

    def _expressions(self) -> list[Words]:
        """Expressions in parentheses."""
        self._expect("(")
        found = []
        while not self._accept(")"):
            expression = self._until(",")
            if not expression:
                raise self._unexpected("an expression")
            found.append(expression)
            if not self._accept(","):
                self._expect(")")
                break
        return found

    def _rest(self) -> Words:
        rest = self._words[self._at :]
        self._at = len(self._words)
        return rest

    def finish(self) -> None:
        """Nothing may be left."""
        if self._at < len(self._words):
            raise self._unexpected("the end")

    # statements

    def insert(self) -> Insert:
        self._expect("INTO")
        return self._new_entries(replaces=False)

    def merge(self) -> Insert:
        self._expect("INTO")
        return self._new_entries(replaces=True)

    def _new_entries(self, *, replaces: bool) -> Insert:
        table = self._path()
        columns = self._names() if self._peek() == "(" else None
        if replaces and self._accept("KEY"):
            self._names()  # the key is the table's own, whatever is said here
        if not self._accept("VALUES"):
            if self._peek() not in _QUESTIONS:
                raise self._unexpected("VALUES or SELECT")
            return Insert(table, columns, [], self._rest(), replaces)
        rows = [self._expressions()]
        while self._accept(","):
            rows.append(self._expressions())
        return Insert(table, columns, rows, None, replaces)

    def _alias(self, *keywords: str) -> str | None:
        if self._accept("AS"):
            return self._name()
        return None if self._peek() in keywords and self._at <= len(self._words) else self._name()

    def update(self) -> Update:
        table = self._path()
        alias = self._alias("SET")
        self._expect("SET")
        values = []
        while True:
            column = self._name()
            if self._accept("."):  # with the table's name or alias before it
                column = self._name()
            self._expect("=")
            values.append((column, self._until(",", "WHERE", "LIMIT")))
            if not self._accept(","):
                break
        return Update(table, alias, values, self._rest())

    def delete(self) -> Delete:
        self._expect("FROM")
        table = self._path()
        alias = self._alias("WHERE", "LIMIT", "")
        return Delete(table, alias, self._rest())

    def drop(self) -> DropTable:
        self._expect("TABLE")
        if_exists = self._accept("IF", "EXISTS")
        table = self._path()
        return DropTable(table, self._accept("IF", "EXISTS") or if_exists)

    def create(self) -> CreateTable:
        self._expect("TABLE")
        if_not_exists = self._accept("IF", "NOT", "EXISTS")
        table = self._path()
        self._expect("(")
        columns: list[ColumnDefinition] = []
        primary_key: list[str] = []
        while not self._accept(")"):
            if self._accept("CONSTRAINT"):
                self._name()
            if self._accept("PRIMARY", "KEY"):
                primary_key += self._names()
            else:
                column, is_key = self._column()
                columns.append(column)
                primary_key += [column.name] if is_key else []
            if not self._accept(","):
                self._expect(")")
                break
        return CreateTable(table, if_not_exists, columns, primary_key, self._options())

    def _column(self) -> tuple[ColumnDefinition, bool]:
        name, type_name = self._name(), self._name()
        if type_name == "DOUBLE":
            self._accept("PRECISION")
        if type_name == "CHARACTER":
            self._accept("VARYING")
        sizes = [-1 if (number := natural(size[0].text)) is None else number for size in self._sizes()]
        precision, scale = [*sizes, -1, -1][:2]
        default: Words | None = None
        not_null = is_key = False
        while True:
            if self._accept("NOT", "NULL"):
                not_null = True
            elif self._accept("PRIMARY", "KEY"):
                is_key = True
            elif self._accept("DEFAULT"):
                default = self._until(",", "NOT", "PRIMARY", "NULL")
                if not default and self._peek() == "NULL":
                    default = [self.take()]
            elif not self._accept("NULL"):
                break
        return ColumnDefinition(name, type_name, precision, scale, not_null, default), is_key

    def _sizes(self) -> list[Words]:
        return self._expressions() if self._peek() == "(" else []

    def _options(self) -> dict[str, str]:
        """`WITH "name=value, …"`, or the same without quotes."""
        if not self._accept("WITH"):
            return {}
        token = self._words[self._at] if self._at < len(self._words) else None
        if token is not None and token.kind == "quoted":
            self.take()
            pairs = token.word.split(",")
        else:
            pairs = "".join(word.text for word in self._rest()).split(",")
        options = {}
        for pair in filter(None, map(str.strip, pairs)):
            name, sign, value = pair.partition("=")
            if not sign or not value.strip():
                raise failed_to_parse(f"Invalid parameter (key[=value] was expected): {pair}")
            options[name.strip().upper()] = value.strip().strip("'")
        return options


# ---------------------------------------------------------------------------------------------------- in DuckDB's words


class Question(NamedTuple):
    """A query for DuckDB."""

    text: str
    parameters: list[object]


def argument(word: Token, arguments: Sequence[Argument]) -> Argument:
    """What is given for a `?`."""
    number = int(word.text[1:])
    if not 1 <= number <= len(arguments):
        raise failed_to_parse(f"Invalid number of query parameters [expected={number}, given={len(arguments)}]")
    return arguments[number - 1]


class Writer:
    """Writes pieces of a statement as DuckDB wants them, and gathers the arguments that they use."""

    def __init__(self, text: str, arguments: Sequence[Parameter]) -> None:
        self._text = text
        self._arguments = arguments
        self._used: list[object] = []

    def piece(self, words: Words) -> str:
        """Words that stand together in the statement."""
        return "".join(self._pieces(words))

    def _pieces(self, words: Words) -> Iterator[str]:
        before: Token | None = None
        for word in words:
            if before is not None:
                yield self._text[before.end : word.start]
            if before is not None and word.kind == "string" and before.text in "xX" and before.end == word.start:
                yield f"('{word.text[1:-1]}')"  # the `X` before it has become `unhex`
            elif word.kind == "name":
                yield "unhex" if word.text in "xX" and self._text[word.end :].startswith("'") else word.word
            else:
                yield self._parameter(word) if word.kind == "parameter" else word.text
            before = word

    def _parameter(self, word: Token) -> str:
        value, kind = argument(word, self._arguments)
        self._used.append(value)
        place = f"${len(self._used)}"
        return place if kind is None else f"CAST({place} AS {kind})"

    def question(self, text: str) -> Question:
        """A whole query made of pieces."""
        return Question(text, self._used)


def quoted(*names: str) -> str:
    """A name, with its schema before it if that is given."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
