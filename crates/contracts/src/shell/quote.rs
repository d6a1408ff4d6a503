//! One word of a shell.

/// Hands over the text as one word of a POSIX shell, part by part.
pub fn quoted<E>(text: &str, mut push: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    push("'")?;
    for (n, part) in text.split('\'').enumerate() {
        if n > 0 {
            push(r"'\''")?;
        }
        push(part)?;
    }
    push("'")
}
