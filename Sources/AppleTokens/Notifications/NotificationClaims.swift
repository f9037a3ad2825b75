import JOSE

/// The claims of a token whose signature is valid, read in one pass and not yet checked.
struct NotificationClaims: Sendable {
    private(set) var issuer: Claim<String> = .absent
    private(set) var audience: Claim<String> = .absent
    private(set) var expiry: Claim<Int64> = .absent
    private(set) var issuedAt: Claim<Int64> = .absent
    private(set) var id: Claim<String> = .absent
    private(set) var events: EventsClaim = .absent

    /// The event, if there is exactly one.
    var event: EventClaims? {
        switch events {
        case .absent, .wrongType, .unreadableText, .notOne: nil
        case .one(let event): event
        }
    }

    init() {}

    /// Claims of other names are skipped, and must be strict JSON too.
    ///
    /// - Throws: ``JOSEError`` unless the payload is one JSON object.
    init(parsing payload: [UInt8]) throws(JOSEError) {
        var reader = JSONReader(payload)
        try reader.beginObject()
        while try reader.nextMember() {
            if reader.nameIs("iss") {
                issuer = Claim(try reader.stringOrSkip())
            } else if reader.nameIs("aud") {
                audience = Claim(try reader.stringOrSkip())
            } else if reader.nameIs("exp") {
                expiry = Claim(try reader.integerOrSkip())
            } else if reader.nameIs("iat") {
                issuedAt = Claim(try reader.integerOrSkip())
            } else if reader.nameIs("jti") {
                id = Claim(try reader.stringOrSkip())
            } else if reader.nameIs("events") {
                events = try EventsClaim(reading: &reader)
            } else {
                try reader.skipValue()
            }
        }
        try reader.end()
    }

    /// Searches a payload that is not strict JSON for a member `events`: without it, it is not a notification. Text in a string
    /// cannot match, because quotes in it are escaped.
    static func namesEvents(_ payload: [UInt8]) -> Bool {
        var rest = payload[...]
        while let name = rest.firstRange(of: "\"events\"".utf8) {
            let following = rest[name.upperBound...].first { ![0x20, 0x09, 0x0A, 0x0D].contains($0) }
            if following == UInt8(ascii: ":") { return true }
            rest = rest[(name.lowerBound + 1)...]
        }
        return false
    }
}

/// One claim. Its type is recorded when it is read and checked later, because the order of the checks is not the order of
/// the claims.
enum Claim<Value: Sendable>: Sendable {
    case absent
    /// Present with a wrong type.
    case malformed
    case value(Value)

    /// nil is a value of another type.
    init(_ value: Value?) {
        self = value.map { .value($0) } ?? .malformed
    }

    var value: Value? {
        switch self {
        case .absent, .malformed: nil
        case .value(let value): value
        }
    }

    var isAbsent: Bool {
        if case .absent = self { true } else { false }
    }
}

/// The members of one event object, not yet checked.
struct EventClaims: Sendable {
    private(set) var type: Claim<String> = .absent
    private(set) var subject: Claim<String> = .absent
    private(set) var time: Claim<Int64> = .absent
    private(set) var email: Claim<String> = .absent
    private(set) var emailIsPrivate: Bool?

    /// Members of other names are skipped.
    init(reading reader: inout JSONReader) throws(JOSEError) {
        try reader.beginObject()
        while try reader.nextMember() {
            if reader.nameIs("type") {
                type = Claim(try reader.stringOrSkip())
            } else if reader.nameIs("sub") {
                subject = Claim(try reader.stringOrSkip())
            } else if reader.nameIs("event_time") {
                time = Claim(try reader.integerOrSkip())
            } else if reader.nameIs("email") {
                email = try Self.email(&reader)
            } else if reader.nameIs("is_private_email") {
                emailIsPrivate = try reader.flagOrSkip()
            } else {
                try reader.skipValue()
            }
        }
    }

    /// null counts as absent.
    private static func email(_ reader: inout JSONReader) throws(JOSEError) -> Claim<String> {
        guard try reader.kind() == .null else { return Claim(try reader.stringOrSkip()) }
        try reader.skipValue()
        return .absent
    }
}

/// The `events` claim.
enum EventsClaim: Sendable {
    case absent
    /// Neither an object, nor an array, nor a string.
    case wrongType
    /// A string without JSON, or with JSON that is neither an object nor an array.
    case unreadableText
    /// An array that does not have exactly one element, or whose element is neither an object nor a string.
    case notOne
    case one(EventClaims)

    /// Apple sends a string that contains JSON, and documents the JSON itself. Either may be the only element of an array.
    init(reading reader: inout JSONReader) throws(JOSEError) {
        switch try reader.kind() {
        case .string:
            self = Self.read(text: try reader.utf8())
        case .object, .array:
            self = try Self.read(&reader, isInText: false)
        case .number, .boolean, .null:
            try reader.skipValue()
            self = .wrongType
        }
    }

    private static func read(text: [UInt8]) -> EventsClaim {
        do {
            var reader = JSONReader(text)
            let claim = try read(&reader, isInText: true)
            try reader.end()
            return claim
        } catch {
            return .unreadableText
        }
    }

    /// Reads one event object, or an array with one.
    ///
    /// - Parameter isInText: true inside a string, which does not contain a further string with JSON.
    private static func read(_ reader: inout JSONReader, isInText: Bool) throws(JOSEError) -> EventsClaim {
        switch try reader.kind() {
        case .object:
            return .one(try EventClaims(reading: &reader))
        case .array:
            var claim = EventsClaim.notOne
            var count = 0
            try reader.beginArray()
            while try reader.nextElement() {
                count += 1
                if count == 1, try reader.kind() == .object {
                    claim = .one(try EventClaims(reading: &reader))
                } else if count == 1, !isInText, try reader.kind() == .string {
                    claim = read(text: try reader.utf8())
                } else {
                    try reader.skipValue()
                }
            }
            return count == 1 ? claim : .notOne
        case .string, .number, .boolean, .null:
            try reader.skipValue()
            return .unreadableText
        }
    }
}

extension JSONReader {
    /// Reads a boolean. Apple sends the string "true" and documents a boolean; later tokens have one. Another value is ignored,
    /// so that the token is not lost.
    mutating func flagOrSkip() throws(JOSEError) -> Bool? {
        switch try kind() {
        case .boolean:
            return try boolean()
        case .string:
            switch try string() {
            case "true": return true
            case "false": return false
            default: return nil
            }
        case .object, .array, .number, .null:
            try skipValue()
            return nil
        }
    }
}
