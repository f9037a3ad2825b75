/// A JSON number as it is spelled: of any size and precision, nothing lost.
package struct JSONNumber: Sendable, Hashable {
    /// The spelling, in the grammar of RFC 8259 §6.
    package let text: String

    /// The exact value, if that is a 64-bit integer: `1.5e3` is 1500, `0.5` and `1e400` are nil.
    package let integer: Int64?

    /// An integer in its usual spelling.
    package init(_ integer: Int64) {
        self.text = String(integer)
        self.integer = integer
    }

    init(_ token: JSONNumberToken, of bytes: [UInt8]) {
        text = String(decoding: bytes[token.start..<token.end], as: UTF8.self)
        integer = token.integer(of: bytes.span)
    }
}
