import JOSE

/// The members of one event object as they stand there.
struct EventClaims: Sendable {
    private(set) var type: Claim<String> = .absent
    private(set) var subject: Claim<String> = .absent
    private(set) var time: Claim<Int64> = .absent
    private(set) var email: Claim<String> = .absent
    private(set) var emailIsPrivate: Bool?

    /// Reads the object that comes next. Members of other names are passed over.
    init(reading reader: inout JSONReader) throws(JOSEError) {
        try reader.beginObject()
        while try reader.nextMember() {
            if reader.nameIs("type") {
                type = try reader.stringClaim()
            } else if reader.nameIs("sub") {
                subject = try reader.stringClaim()
            } else if reader.nameIs("event_time") {
                time = try reader.integerClaim()
            } else if reader.nameIs("email") {
                email = try Self.email(&reader)
            } else if reader.nameIs("is_private_email") {
                emailIsPrivate = try Self.flag(&reader)
            } else {
                try reader.skipValue()
            }
        }
    }

    /// An address, where null says the same as leaving it out.
    private static func email(_ reader: inout JSONReader) throws(JOSEError) -> Claim<String> {
        guard try reader.kind() == .null else { return try reader.stringClaim() }
        try reader.skipValue()
        return .absent
    }

    /// Apple sends the string "true" and documents a boolean. Anything else says nothing: an event isn't lost for it.
    private static func flag(_ reader: inout JSONReader) throws(JOSEError) -> Bool? {
        switch try reader.kind() {
        case .boolean:
            return try reader.boolean()
        case .string:
            switch try reader.string() {
            case "true": return true
            case "false": return false
            default: return nil
            }
        case .object, .array, .number, .null:
            try reader.skipValue()
            return nil
        }
    }
}

/// What the `events` claim turned out to be.
enum EventsClaim: Sendable {
    case absent
    /// Neither an object, nor an array, nor a string.
    case wrongType
    /// A string that holds no JSON, or JSON that is neither an object nor an array.
    case unreadableText
    /// An array of another number than one, or whose one element is no object.
    case notOne
    case one(EventClaims)

    /// Reads the claim: a string that holds JSON, as Apple sends it, or the JSON itself, as Apple documents it.
    init(reading reader: inout JSONReader) throws(JOSEError) {
        switch try reader.kind() {
        case .string:
            self = Self.read(text: try reader.utf8())
        case .object, .array:
            self = try Self.read(&reader)
        case .number, .boolean, .null:
            try reader.skipValue()
            self = .wrongType
        }
    }

    private static func read(text: [UInt8]) -> EventsClaim {
        do {
            var reader = JSONReader(text)
            let claim = try read(&reader)
            try reader.end()
            return claim
        } catch {
            return .unreadableText
        }
    }

    /// Reads one event object, or an array of exactly one.
    private static func read(_ reader: inout JSONReader) throws(JOSEError) -> EventsClaim {
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
