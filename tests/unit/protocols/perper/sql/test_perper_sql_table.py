"""What query entities make of entries, and entries out of rows."""

import pytest

from headrace.protocols.perper.errors import Refused
from headrace.protocols.perper.ignite.binary import (
    ComplexHeader,
    encode_complex,
    encode_long,
    encode_string,
    field_id,
    schema_id,
    type_id,
)
from headrace.protocols.perper.ignite.configuration import Configuration, QueryEntity, QueryField
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.definitions import configuration_of
from headrace.protocols.perper.sql.names import TableNames
from headrace.protocols.perper.sql.table import tables_of
from headrace.protocols.perper.sql.text import CreateTable, parse

NULL = b"\x65"


def field(name, java, *, is_key=False, not_null=False, default=NULL, precision=-1, scale=-1):
    return QueryField(name, java, is_key, not_null, default, precision, scale)


def entity(names, *fields, aliases=()):
    return QueryEntity(names, list(fields), list(aliases), [])


def table_of(*entities, cache="c", **properties):
    numbered = {int(code[1:]): value for code, value in properties.items()}
    return tables_of(cache, Configuration({0: cache, 200: list(entities), **numbered}))


def created(text):
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return tables_of("made", configuration_of(statement, "PUBLIC"))[0]


PEAR = entity(
    (None, "a.b.Pear", None, None, None),
    field("name", "java.lang.String", not_null=True, precision=5),
    field("tree.row", "java.lang.Integer"),
    field("note", "java.lang.String", default=encode_string("none")),
    aliases=[("tree.row", "at")],
)
SCHEMAS = {}


def schemas(kind, schema):
    return SCHEMAS.get((kind, schema))


def made(name, /, **fields):
    ids = [field_id(each) for each in fields]
    SCHEMAS[type_id(name), schema_id(ids)] = ids
    return encode_complex(type_id(name), list(zip(ids, fields.values(), strict=True)))


def rows(table, names, *entries, key_kind=None):
    columns = table.all_columns(key_kind)
    return table.batch([columns[name] for name in names], entries, schemas).to_pylist()


def test_names_of_schemas_and_tables():
    (table,) = table_of(PEAR)
    assert (table.schema, table.name, [column.name for column in table.columns]) == (
        "c",
        "PEAR",
        ["NAME", "AT", "NOTE"],
    )
    (escaped,) = table_of(PEAR, p203="own", p205=True)
    assert (escaped.schema, escaped.name, escaped.columns[0].name) == ("OWN", "Pear", "name")
    (quoted,) = table_of(PEAR, p203='"own"')
    assert quoted.schema == "own"
    (named,) = table_of(entity((None, "x.Outer$Inner", None, None, None)))
    assert named.name == "INNER"


def test_rows_of_entries_of_the_type():
    (table,) = table_of(PEAR)
    tree = made("Tree", row=b"\x03\7\0\0\0")
    pear = made("Pear", name=encode_string("fig"), tree=tree)  # by its simple name
    names = ["NAME", "AT", "NOTE", "_KEY_OBJECT"]
    key = encode_long(1)
    others = (encode_string("of no type"), made("Other", name=encode_string("x")))
    found = rows(table, names, (key, pear), *[(key, each) for each in others])
    assert found == [{"NAME": "fig", "AT": 7, "NOTE": None, "_KEY_OBJECT": key}]
    (whole,) = rows(table, ["_KEY", "_VAL", "_VAL_OBJECT"], (key, pear))
    assert whole == {"_KEY": {"object": key}, "_VAL": {"object": pear}, "_VAL_OBJECT": pear}
    assert rows(table, ["_KEY"], (key, pear), key_kind=kinds.BIGINT) == [{"_KEY": 1}]
    assert rows(table, ["AT"], (key, made("Pear", tree=encode_long(5)))) == [{"AT": None}]
    with pytest.raises(Refused, match="column NAME of cache 'c'"):
        rows(table, ["NAME"], (key, made("Pear", name=encode_long(5))))


def test_a_key_and_a_value_that_are_columns():
    (table,) = table_of(
        entity(
            ("java.lang.Long", "java.lang.String", "T", "id", "v"),
            field("id", "java.lang.Long"),
            field("v", "java.lang.String"),
        )
    )
    assert rows(table, ["ID", "V", "_KEY", "_VAL"], (encode_long(5), encode_string("x"))) == [
        {"ID": 5, "V": "x", "_KEY": 5, "_VAL": "x"}
    ]
    assert rows(table, ["ID"], (encode_long(5), made("Pear", name=encode_string("x")))) == []
    assert table.entry({"ID": encode_long(5), "V": encode_string("x")}) == (encode_long(5), encode_string("x"))
    assert table.types() == []
    assert table.updated(encode_string("x"), {"V": encode_string("y")}, schemas) == (encode_string("y"), None)
    for values in ({"V": encode_string("x")}, {"ID": encode_long(5)}, {"ID": NULL, "V": encode_string("x")}):
        with pytest.raises(Refused, match="Null value is not allowed"):
            table.entry(values)


def test_entries_of_rows_and_their_types():
    table = created(
        "CREATE TABLE t (a INT, b VARCHAR, c DECIMAL(9, 2) DEFAULT 1.5, d INT NOT NULL, PRIMARY KEY (a, b))"
    )
    key_type, value_type = table.types()
    assert [each.name for each in key_type.fields] == ["A", "B"]
    assert [(each.name, each.type_code) for each in value_type.fields] == [("C", 30), ("D", 3)]
    values = {"A": b"\x03\1\0\0\0", "B": encode_string("x"), "D": b"\x03\2\0\0\0"}
    key, value = table.entry(values)
    for kind in (key_type, value_type):
        SCHEMAS.update({(kind.type_id, number): ids for number, ids in kind.schemas.items()})
    assert rows(table, ["A", "B", "D"], (key, value)) == [{"A": 1, "B": "x", "D": 2}]
    assert str(rows(table, ["C"], (key, value))[0]["C"].normalize()) == "1.5"
    with pytest.raises(Refused, match="Null value is not allowed for column 'D'"):
        table.entry(values | {"D": NULL})
    changed, kind = table.updated(value, {"D": b"\x03\3\0\0\0"}, schemas)
    assert kind is not None
    assert kind.schemas == value_type.schemas
    assert rows(table, ["D"], (key, changed)) == [{"D": 3}]
    with pytest.raises(Refused, match="Null value is not allowed"):
        table.updated(value, {"D": NULL}, schemas)


def test_a_field_that_is_new_to_a_value_is_added_to_it():
    (table,) = table_of(PEAR)
    pear = made("a.b.Pear", name=encode_string("fig"))
    changed, kind = table.updated(pear, {"NOTE": encode_string("ripe")}, schemas)
    assert kind is not None
    (ids,) = kind.schemas.values()
    assert list(ids) == [field_id("name"), field_id("note")]
    assert ComplexHeader(changed).schema_id == schema_id(list(ids))
    with pytest.raises(Refused, match="can only be read"):
        table.updated(pear, {"AT": b"\x03\1\0\0\0"}, schemas)
    with pytest.raises(Refused, match="not an object with fields"):
        table.updated(encode_long(1), {"NOTE": encode_string("x")}, schemas)
    raw = bytearray(pear)
    raw[2] |= 4
    with pytest.raises(Refused, match="raw data"):
        table.updated(bytes(raw), {"NOTE": encode_string("x")}, schemas)
    with pytest.raises(Refused, match="does not say of which type"):
        table_of(entity((None, "V", None, None, None), field("k", "java.lang.Long", is_key=True)))[0].types()
    with pytest.raises(Refused, match="Key is missing"):
        table.entry({"NAME": encode_string("x")})


def test_what_a_column_declares_is_obeyed():
    (table,) = table_of(PEAR)
    name = table.column("NAME")
    assert name.stored(encode_string("süßes")) == encode_string("süßes")
    with pytest.raises(Refused, match="Maximum length: 5, actual length: 6"):
        name.stored(encode_string("süßes!"))
    number = created("CREATE TABLE t (a INT PRIMARY KEY, b DECIMAL(9, 2))").column("B")
    hundredths, thousandths = (b"\x1e" + bytes((scale, 0, 0, 0, 1, 0, 0, 0, 5)) for scale in (2, 3))
    assert number.stored(hundredths) == hundredths
    with pytest.raises(Refused, match="Maximum scale: 2, actual scale: 3"):
        number.stored(thousandths)
    with pytest.raises(Refused, match='Column "SIZE" not found'):
        table.column("SIZE")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CREATE TABLE t (a INT PRIMARY KEY, a INT)", "Duplicate column name: A"),
        ("CREATE TABLE t (a INT, b INT, PRIMARY KEY (c))", "PRIMARY KEY column is not defined: C"),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT DEFAULT 'x')", "default of column B"),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT DEFAULT now())", "default of column B"),
        ('CREATE TABLE t (a INT PRIMARY KEY, b INT) WITH "BACKUPS=many"', "Invalid value of BACKUPS"),
        ('CREATE TABLE t (a INT PRIMARY KEY, b INT) WITH "BACKUPS=\N{SUPERSCRIPT TWO}"', "Invalid value of BACKUPS"),
        ('CREATE TABLE t (a INT PRIMARY KEY, b INT) WITH "TEMPLATE=large"', "PARTITIONED, REPLICATED was expected"),
        ('CREATE TABLE t (a INT PRIMARY KEY, b INT) WITH "WRAP_KEY=perhaps"', "TRUE or FALSE"),
        ('CREATE TABLE t (a INT PRIMARY KEY, b INT, c INT) WITH "WRAP_VALUE=false"', "WRAP_VALUE cannot be false"),
    ],
)
def test_tables_that_cannot_be(text, reason):
    with pytest.raises(Refused, match=reason):
        created(text)
    with pytest.raises(Refused, match="PUBLIC"):
        configuration_of(parse("CREATE TABLE t (a INT PRIMARY KEY, b INT)"), "OTHER")  # type: ignore[arg-type]


def test_options_are_properties_of_the_cache():
    statement = parse(
        'CREATE TABLE t (a INT PRIMARY KEY, b INT) WITH "TEMPLATE=REPLICATED, ATOMICITY=transactional, BACKUPS=2, '
        'WRITE_SYNCHRONIZATION_MODE=FULL_SYNC, DATA_REGION=r, AFFINITY_KEY=a, WRAP_KEY=true, WRAP_VALUE=false"'
    )
    properties = configuration_of(statement, "PUBLIC").properties  # type: ignore[arg-type]
    assert {code: properties[code] for code in (0, 1, 2, 3, 4, 100)} == {
        0: "SQL_PUBLIC_T", 1: 1, 2: 0, 3: 2, 4: 0, 100: "r",
    }  # fmt: skip
    key_type, value_type, name, key_field, value_field = properties[200][0].names
    assert (value_type, name, key_field, value_field) == ("java.lang.Integer", "T", None, "B")
    assert key_type.startswith("SQL_PUBLIC_T_")
    again = configuration_of(statement, "PUBLIC").properties[200][0].names  # type: ignore[arg-type]
    assert again[0] == key_type  # the same table has the same types


def test_the_first_of_two_tables_keeps_its_name():
    names = TableNames()
    first, second = table_of(PEAR, cache="a", p203="S"), table_of(PEAR, cache="b", p203="S")
    names.add("a", first)
    names.add("b", second)
    with pytest.raises(Refused, match="Table already exists: PEAR"):
        names.check(second)
    assert names.find(("PEAR",), "S") is names.find(("S", "PEAR"), "X") is first[0]
    assert (names.schema("s"), names.schema("public"), names.of_cache("b")) == ("S", "PUBLIC", second)
    names.remove("b")
    assert names.find(("PEAR",), "S") is first[0]
    names.remove("a")
    names.remove("never there")
    assert names.find(("PEAR",), "S") is None
    with pytest.raises(Refused, match="Failed to set schema"):
        names.schema("S")
    with pytest.raises(Refused, match='Table "PEAR" not found'):
        names.table(("PEAR",), "S")
