//! JSON Schemas of types that read and write a form of their own, and so derive none; and the reading of the most usual such form.

/// The schema of a type, under the type's name: `own_schema!(Duration, |_| json_schema!({"type": "string"}))`. What stands between
/// the bars is the generator, for schemas of parts.
macro_rules! own_schema {
    ($type:ident, |$generator:pat_param| $schema:expr) => {
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}

/// The reading of a type that is written as a text or as an object: what an error says is expected, the text's value, or its error,
/// and the value of the object's fields.
macro_rules! text_or_object {
    ($type:ident, $expected:literal, |$text:ident| $short:expr, $fields:ty => |$long:pat_param| $made:expr) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_str<E: serde::de::Error>(self, $text: &str) -> Result<$type, E> {
                        $short
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        map: A,
                    ) -> Result<$type, A::Error> {
                        let map = serde::de::value::MapAccessDeserializer::new(map);
                        let $long = <$fields as serde::Deserialize>::deserialize(map)?;
                        Ok($made)
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    };
}

pub(crate) use own_schema;
pub(crate) use text_or_object;
