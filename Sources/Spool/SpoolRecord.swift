/// A request that was acknowledged, or is to be, before the database has it.
package struct SpoolRecord: Sendable, Equatable {
    /// When it was received, in microseconds since 1970.
    package let receivedAt: Int64
    /// The key that verified it at receipt; nil for what nobody verified.
    package let keyID: String?
    /// The request's body, or the token alone.
    package let body: [UInt8]

    /// A record of these parts.
    package init(receivedAt: Int64, keyID: String?, body: [UInt8]) {
        self.receivedAt = receivedAt
        self.keyID = keyID
        self.body = body
    }
}
