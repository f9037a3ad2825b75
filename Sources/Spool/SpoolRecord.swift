/// A request that was acknowledged, or is to be, before the database has it.
public struct SpoolRecord: Sendable, Equatable {
    /// When it was received, in microseconds since 1970.
    public let receivedAt: Int64
    /// The key that verified it at receipt; nil for what nobody verified.
    public let keyID: String?
    /// The request's body, or the token alone.
    public let body: [UInt8]

    /// A record of these parts.
    public init(receivedAt: Int64, keyID: String?, body: [UInt8]) {
        self.receivedAt = receivedAt
        self.keyID = keyID
        self.body = body
    }
}
