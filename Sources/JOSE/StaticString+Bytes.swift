extension StaticString {
    /// Whether the `count` bytes of `bytes` from `start` are this text.
    func equals(_ bytes: Span<UInt8>, at start: Int, count: Int) -> Bool {
        guard start <= bytes.count - count else { return false }
        return withUTF8Buffer { text in
            guard text.count == count else { return false }
            for index in 0..<count where unsafe bytes[start &+ index] != text[index] { return false }
            return true
        }
    }
}
