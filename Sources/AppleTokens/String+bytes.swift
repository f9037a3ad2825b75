extension String {
    /// Whether the two have the same bytes. Swift's `==` takes canonically equivalent spellings for equal, such as the
    /// Kelvin sign and `K`; whoever compares names with PostgreSQL or with a signed text must not.
    ///
    /// What `==` takes for equal to ASCII and isn't the same is longer, so the bytes are looked at only beyond ASCII.
    func hasSameBytes(as other: String) -> Bool {
        guard self == other, utf8.count == other.utf8.count else { return false }
        return utf8Span.isKnownASCII || other.utf8Span.isKnownASCII || utf8.elementsEqual(other.utf8)
    }

    /// Whether it holds one of U+0000…U+001F and U+007F…U+009F.
    var holdsControlCharacter: Bool {
        var previous: UInt8 = 0
        let bytes = utf8Span.span
        for index in bytes.indices {
            let byte = bytes[index]
            // U+0080…U+009F are C2 80…C2 9F in UTF-8.
            if byte < 0x20 || byte == 0x7F || (previous == 0xC2 && byte < 0xA0) { return true }
            previous = byte
        }
        return false
    }
}
