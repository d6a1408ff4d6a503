//! Closed lists whose values have one name each: in JSON, in SQL and on the command line.

/// An enum of plain values, each beside its name, which serde and `as_str` both take from here.
macro_rules! named {
    (
        $(#[$of:meta])*
        pub enum $type:ident {
            $($(#[$about:meta])* $value:ident = $name:literal,)+
        }
    ) => {
        $(#[$of])*
        pub enum $type {
            $($(#[$about])* #[serde(rename = $name)] $value,)+
        }

        impl $type {
            /// Every value, in the order of the declaration.
            pub const ALL: &[Self] = &[$(Self::$value,)+];

            /// The name, as it stands in JSON and in SQL.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $name,)+ }
            }

            /// The value that has this name.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text)
            }
        }
    };
}

pub(crate) use named;
