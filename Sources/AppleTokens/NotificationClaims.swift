import JOSE

/// The claims of a token whose signature is valid, as they stand there: read in one pass, not judged.
struct NotificationClaims: Sendable {
    private(set) var issuer: Claim<String> = .absent
    private(set) var audience: Claim<String> = .absent
    private(set) var expiry: Claim<Int64> = .absent
    private(set) var issuedAt: Claim<Int64> = .absent
    private(set) var id: Claim<String> = .absent
    private(set) var events: EventsClaim = .absent

    /// The members of the one event, if there is exactly one.
    var event: EventClaims? {
        switch events {
        case .absent, .wrongType, .unreadableText, .notOne: nil
        case .one(let event): event
        }
    }

    /// No claims.
    init() {}

    /// Reads a payload. Claims of other names are passed over, but held to strict JSON like the rest.
    ///
    /// - Throws: ``JOSEError`` when the payload isn't one JSON object.
    init(parsing payload: [UInt8]) throws(JOSEError) {
        var reader = JSONReader(payload)
        try reader.beginObject()
        while try reader.nextMember() {
            if reader.nameIs("iss") {
                issuer = try reader.stringClaim()
            } else if reader.nameIs("aud") {
                audience = try reader.stringClaim()
            } else if reader.nameIs("exp") {
                expiry = try reader.integerClaim()
            } else if reader.nameIs("iat") {
                issuedAt = try reader.integerClaim()
            } else if reader.nameIs("jti") {
                id = try reader.stringClaim()
            } else if reader.nameIs("events") {
                events = try EventsClaim(reading: &reader)
            } else {
                try reader.skipValue()
            }
        }
        try reader.end()
    }

    /// Whether a payload that can't be read has a member `events` somewhere: without one it is no notification. What stands
    /// in a string can't look like that, since the quotes within it are escaped.
    static func namesEvents(_ payload: [UInt8]) -> Bool {
        let name = Array("\"events\"".utf8)
        var rest = payload[...]
        while let quote = rest.firstIndex(of: UInt8(ascii: "\"")) {
            rest = rest[quote...]
            if rest.starts(with: name) {
                let following = rest.dropFirst(name.count).first { ![0x20, 0x09, 0x0A, 0x0D].contains($0) }
                if following == UInt8(ascii: ":") { return true }
            }
            rest = rest.dropFirst()
        }
        return false
    }
}
