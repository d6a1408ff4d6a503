//! Protobuf's wire format, to and from the JSON that the services are written in. Pure.
//!
//! ```text
//! bytes --(the message's fields)--> JSON object        key = number << 3 | wire type
//! ```
//! **Unknown fields are refused, as they are in JSON.** What a field repeats is merged as the format says: the last value of a
//! single one counts, and parts of a message are one message.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contracts::instant::Instant;
use serde_json::{Map, Value, json};

use crate::answer::time;
use crate::connect::fault::Fault;
use crate::connect::schema::{EnumName, Field, Kind, Message, Rule};

const VARINT: u64 = 0;
const SIZED: u64 = 2;
/// Bytes of the longest number: ten groups of seven bits.
const MAX_VARINT: usize = 10;
const MS: i64 = 1_000;
const NANOS_OF_MS: i64 = 1_000_000;

static TEXTS: Message = Message {
    name: "an entry of a map",
    fields: &[
        Field { number: 1, name: "key", kind: Kind::Text, rule: Rule::Always },
        Field { number: 2, name: "value", kind: Kind::Text, rule: Rule::Always },
    ],
};

fn wrong(message: &Message, why: &str) -> Fault {
    Fault::argument(format!("the message: {}: {why}", message.name))
}

/// A message as an object.
pub(crate) fn decode(bytes: &[u8], message: &Message) -> Result<Value, Fault> {
    let mut object = Map::new();
    merge(bytes, message, &mut object)?;
    Ok(Value::Object(object))
}

/// One value as it lies on the wire.
enum Raw<'b> {
    Number(u64),
    Sized(&'b [u8]),
}

fn merge(bytes: &[u8], message: &Message, into: &mut Map<String, Value>) -> Result<(), Fault> {
    for field in message.fields.iter().filter(|field| field.rule == Rule::Always) {
        // What is left out has its default.
        into.entry(field.name).or_insert_with(|| default(field.kind));
    }
    let mut left = bytes;
    while !left.is_empty() {
        let key = varint(&mut left).ok_or_else(|| wrong(message, "a key breaks off"))?;
        let raw = match key & 7 {
            VARINT => varint(&mut left).map(Raw::Number),
            SIZED => sized(&mut left).map(Raw::Sized),
            other => return Err(wrong(message, &format!("the wire type {other} is not in use"))),
        };
        let raw = raw.ok_or_else(|| wrong(message, "a field breaks off"))?;
        let field = message.fields.iter().find(|field| u64::from(field.number) == key >> 3);
        let field = field.ok_or_else(|| wrong(message, &format!("unknown field {}", key >> 3)))?;
        put(message, field, &raw, into)?;
    }
    Ok(())
}

/// Enters a value in its message.
fn put(
    message: &Message,
    field: &Field,
    raw: &Raw<'_>,
    into: &mut Map<String, Value>,
) -> Result<(), Fault> {
    if field.rule == Rule::OneOf {
        let others = message.fields.iter().filter(|f| f.rule == Rule::OneOf && *f != field);
        others.for_each(|other| drop(into.remove(other.name)));
    }
    let mistyped = || wrong(message, &format!("{} is not of its type", field.name));
    match (field.kind, field.rule, raw) {
        (Kind::Texts, _, Raw::Sized(bytes)) => {
            let mut entry = Map::new();
            merge(bytes, &TEXTS, &mut entry)?;
            let key = entry.get("key").and_then(Value::as_str).unwrap_or("").to_owned();
            let value = entry.remove("value").unwrap_or(Value::Null);
            let texts = into.entry(field.name).or_insert_with(|| json!({}));
            texts.as_object_mut().ok_or_else(mistyped)?.insert(key, value);
        }
        (Kind::Message(inner), Rule::Repeated, Raw::Sized(bytes)) => {
            let value = decode(bytes, inner)?;
            list(into, field).ok_or_else(mistyped)?.push(value);
        }
        (Kind::Message(inner), _, Raw::Sized(bytes)) => {
            let object = into.entry(field.name).or_insert_with(|| json!({}));
            merge(bytes, inner, object.as_object_mut().ok_or_else(mistyped)?)?;
        }
        (kind, rule, raw) => {
            let value = scalar(kind, raw).ok_or_else(mistyped)?;
            match rule {
                Rule::Repeated => list(into, field).ok_or_else(mistyped)?.push(value),
                _ => drop(into.insert(field.name.to_owned(), value)),
            }
        }
    }
    Ok(())
}

fn list<'m>(into: &'m mut Map<String, Value>, field: &Field) -> Option<&'m mut Vec<Value>> {
    into.entry(field.name).or_insert_with(|| json!([])).as_array_mut()
}

fn default(kind: Kind) -> Value {
    match kind {
        Kind::Bool => json!(false),
        Kind::Uint32 | Kind::Sint32 => json!(0),
        Kind::Int64 => json!("0"),
        Kind::Enum(names) => json!(name_of(names, 0)),
        _ => json!(""),
    }
}

fn name_of(names: &[EnumName], number: i64) -> String {
    let found = names.iter().find(|known| known.number == number);
    found.map_or_else(|| number.to_string(), |known| known.name.to_owned())
}

/// A value that is no message; `None`: the wire has another type.
fn scalar(kind: Kind, raw: &Raw<'_>) -> Option<Value> {
    Some(match (kind, raw) {
        (Kind::Text, Raw::Sized(bytes)) => json!(std::str::from_utf8(bytes).ok()?),
        (Kind::Bytes, Raw::Sized(bytes)) => json!(STANDARD.encode(bytes)),
        (Kind::Bool, Raw::Number(number)) => json!(*number != 0),
        (Kind::Uint32, Raw::Number(number)) => json!(low(*number)),
        (Kind::Int64, Raw::Number(number)) => json!(signed(*number).to_string()),
        (Kind::Sint32, Raw::Number(number)) => {
            let half = i64::from(low(*number) >> 1);
            json!(if number & 1 == 1 { -half - 1 } else { half })
        }
        (Kind::Enum(names), Raw::Number(number)) => json!(name_of(names, signed(*number))),
        (Kind::Timestamp, Raw::Sized(bytes)) => json!(time(timestamp(bytes)?)),
        _ => return None,
    })
}

/// The lower 32 bits, as the format has it for a number that is too large.
fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

fn signed(number: u64) -> i64 {
    i64::from_le_bytes(number.to_le_bytes())
}

fn unsigned(number: i64) -> u64 {
    u64::from_le_bytes(number.to_le_bytes())
}

/// ms since the epoch of a `google.protobuf.Timestamp`.
fn timestamp(bytes: &[u8]) -> Option<i64> {
    let (mut left, mut seconds, mut nanos) = (bytes, 0, 0);
    while !left.is_empty() {
        let key = varint(&mut left)?;
        let number = signed(varint(&mut left)?);
        match key {
            0x08 => seconds = number,
            0x10 => nanos = number,
            _ => return None,
        }
    }
    seconds.checked_mul(MS)?.checked_add(nanos / NANOS_OF_MS)
}

fn varint(left: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for at in 0..MAX_VARINT {
        let (first, rest) = left.split_first()?;
        *left = rest;
        number |= u64::from(first & 0x7f) << (7 * at);
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn sized<'b>(left: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = usize::try_from(varint(left)?).ok()?;
    let (bytes, rest) = left.split_at_checked(length)?;
    *left = rest;
    Some(bytes)
}

/// An object as a message. What the message has no field for stays JSON's alone.
pub(crate) fn encode(value: &Value, message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    for field in message.fields {
        let Some(value) = value.get(field.name) else { continue };
        match (field.rule, value) {
            (Rule::Repeated, Value::Array(all)) => {
                all.iter().for_each(|one| write(&mut out, field, one));
            }
            (Rule::Always, value) if *value == default(field.kind) => {}
            (_, value) => write(&mut out, field, value),
        }
    }
    out
}

fn write(out: &mut Vec<u8>, field: &Field, value: &Value) {
    let text = || value.as_str().unwrap_or_default();
    let number = match field.kind {
        Kind::Text => return write_sized(out, field.number, text().as_bytes()),
        Kind::Bytes => {
            let bytes = STANDARD.decode(text()).unwrap_or_default();
            return write_sized(out, field.number, &bytes);
        }
        Kind::Message(inner) => return write_sized(out, field.number, &encode(value, inner)),
        Kind::Texts => {
            for (key, value) in value.as_object().into_iter().flatten() {
                let entry = encode(&json!({"key": key, "value": value}), &TEXTS);
                write_sized(out, field.number, &entry);
            }
            return;
        }
        Kind::Timestamp => {
            let ms = text().parse::<Instant>().map_or(0, Instant::ms);
            let mut inner = Vec::new();
            write_varint(&mut inner, 0x08);
            write_varint(&mut inner, unsigned(ms.div_euclid(MS)));
            write_varint(&mut inner, 0x10);
            write_varint(&mut inner, unsigned(ms.rem_euclid(MS) * NANOS_OF_MS));
            return write_sized(out, field.number, &inner);
        }
        Kind::Bool => u64::from(value.as_bool().unwrap_or(false)),
        Kind::Uint32 => value.as_u64().unwrap_or(0),
        Kind::Int64 => unsigned(text().parse().unwrap_or(0)),
        Kind::Sint32 => {
            let number = value.as_i64().unwrap_or(0);
            unsigned((number << 1) ^ (number >> 63))
        }
        Kind::Enum(names) => {
            let found = names.iter().find(|known| known.name == text());
            // One without a name was read as its number.
            let number = found.map(|known| known.number).or_else(|| text().parse().ok());
            unsigned(number.unwrap_or(0))
        }
    };
    write_varint(out, u64::from(field.number) << 3 | VARINT);
    write_varint(out, number);
}

fn write_sized(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    write_varint(out, u64::from(number) << 3 | SIZED);
    write_varint(out, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    out.extend_from_slice(bytes);
}

fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use crate::connect::schema::Method;
    use crate::routes::ROUTES;
    use cofferdam_hostile::fuzz;

    use super::*;

    fn method(name: &str) -> &'static Method {
        let found = ROUTES.iter().find(|route| route.path.rsplit('/').next() == Some(name));
        found.unwrap().endpoint.codec().unwrap()
    }

    /// The bytes are those of Python's `protobuf` for the same messages.
    #[test]
    fn a_request_is_read_as_its_json_would_be() {
        let read = |bytes: &[u8], name| decode(bytes, method(name).request).unwrap();
        let start = b"\x0a\x1a\x0a\x02sh\x12\x02-c\x12\x02id\x1a\x06\x0a\x01A\x12\x01b\x22\x04/tmp\x12\x06\x0a\x04\x08d\x10\x1e\x1a\x01t\x20\x00";
        let want = json!({
            "process": {"cmd": "sh", "args": ["-c", "id"], "envs": {"A": "b"}, "cwd": "/tmp"},
            "pty": {"size": {"cols": 100, "rows": 30}}, "tag": "t", "stdin": false,
        });
        assert_eq!(read(start, "Start"), want);
        assert_eq!(read(b"", "ListDir"), json!({"path": "", "depth": 0}));
        let signal = json!({"process": {"pid": 7}, "signal": "SIGNAL_SIGKILL"});
        assert_eq!(read(b"\x0a\x02\x08\x07\x10\x09", "SendSignal"), signal);
        let input = json!({"data": {"input": {"stdin": "aGk="}}});
        assert_eq!(read(b"\x12\x06\x12\x04\x0a\x02hi", "StreamInput"), input);
        // Parts of one message are merged, and of one-of-many the last is meant.
        let merged = read(b"\x0a\x04\x0a\x02sh\x0a\x04\x12\x02-c", "Start");
        assert_eq!(merged, json!({"process": {"cmd": "sh", "args": ["-c"]}}));
        let last = read(b"\x0a\x05\x08\x07\x12\x01t", "CloseStdin");
        assert_eq!(last, json!({"process": {"tag": "t"}}));
    }

    #[test]
    fn what_is_no_message_of_the_method_is_refused() {
        for bad in [
            &b"\x0a"[..],
            b"\x0a\x05ab",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x0a\x01\xff",
            b"\x08\x01",
            b"\x0b\x0c",
            b"\x0d\x00\x00\x00\x00",
            b"\x00",
            b"\x22\x00",
        ] {
            let refused = decode(bad, method("Stat").request).unwrap_err();
            assert_eq!(refused.code, "invalid_argument", "{bad:?}");
        }
        let unknown = decode(b"\x22\x00", method("Stat").request).unwrap_err();
        assert!(unknown.message.ends_with("unknown field 4"), "{}", unknown.message);
    }

    #[test]
    fn a_reply_has_the_bytes_that_its_readers_know() {
        let written = |value: Value, name| encode(&value, method(name).reply);
        let end = json!({"event": {"end": {"exitCode": -1, "exited": false, "status": "s", "error": "e"}}});
        assert_eq!(written(end, "Start"), b"\x0a\x0a\x1a\x08\x08\x01\x1a\x01s\x22\x01e");
        let data = json!({"event": {"data": {"stdout": "aGk="}}});
        assert_eq!(written(data, "Connect"), b"\x0a\x06\x12\x04\x0a\x02hi");
        assert_eq!(written(json!({"event": {"keepalive": {}}}), "Start"), b"\x0a\x02\x22\x00");
        let entry = json!({"entry": {"name": "a", "type": "FILE_TYPE_DIRECTORY", "size": "4096", "isSymlink": true,
                                     "modifiedTime": "1969-12-31T23:59:59.500Z"}});
        let want = b"\x0a\x1d\x0a\x01a\x10\x02\x20\x80\x20\x4a\x11\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x80\xca\xb5\xee\x01\x60\x01";
        assert_eq!(written(entry, "Stat"), want);
    }

    /// What is read can be written, and is read again as it was.
    #[test]
    fn fuzz_a_message_of_envd_is_read_or_refused() {
        fuzz!("envd", |bytes: &[u8]| {
            let methods = ROUTES.iter().filter_map(|route| route.endpoint.codec());
            for Method { request, reply } in methods {
                if let Ok(value) = decode(bytes, request) {
                    let again = decode(&encode(&value, request), request).unwrap();
                    assert_eq!(again, value, "{}", request.name);
                }
                drop(decode(bytes, reply));
            }
        });
    }
}
