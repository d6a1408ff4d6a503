//! JSON Schemas of types that read and write a form of their own, and so derive none.

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

pub(crate) use own_schema;
