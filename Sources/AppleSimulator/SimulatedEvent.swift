import JOSE

/// One notification in Apple's vocabulary, before it is signed. Nothing is checked: what Apple wouldn't send can be made
/// too.
package struct SimulatedEvent: Sendable, Hashable {
    /// `type`, such as `consent-revoked`.
    package var type: String
    /// `sub`, the person.
    package var sub: String
    /// `aud`, the primary App ID.
    package var app: String
    /// `email`; Apple has it in events about email only.
    package var email: String?
    /// `is_private_email`, which Apple sends as a string.
    package var isPrivateEmail: Bool?
    /// `event_time` in milliseconds since 1970.
    package var eventTime: Int64
    /// `iat` in seconds since 1970; `exp` is a day later.
    package var issuedAt: Int64
    /// `jti`.
    package var id: String

    /// An event of these parts; without an id it gets one of its own.
    package init(
        type: String,
        sub: String,
        app: String,
        email: String? = nil,
        isPrivateEmail: Bool? = nil,
        eventTime: Int64,
        issuedAt: Int64,
        id: String = SimulatedEvent.randomID()
    ) {
        self.type = type
        self.sub = sub
        self.app = app
        self.email = email
        self.isPrivateEmail = isPrivateEmail
        self.eventTime = eventTime
        self.issuedAt = issuedAt
        self.id = id
    }

    /// A `jti` in Apple's shape: 16 random bytes as 22 characters of base64url.
    package static func randomID() -> String {
        Base64URL.encode((0..<16).map { _ in UInt8.random(in: .min ... .max) })
    }

    /// A `sub` in Apple's shape: six digits, 32 hexadecimal digits, four digits.
    package static func randomSubject() -> String {
        func digits(_ count: Int, radix: Int) -> String {
            (0..<count).map { _ in String(Int.random(in: 0..<radix), radix: radix) }.joined()
        }
        return "\(digits(6, radix: 10)).\(digits(32, radix: 16)).\(digits(4, radix: 10))"
    }

    /// The event object in Apple's order of members.
    package var eventObject: String {
        var members = ["\"type\":\(JSONValue.quoted(type))", "\"sub\":\(JSONValue.quoted(sub))"]
        if let email { members.append("\"email\":\(JSONValue.quoted(email))") }
        if let isPrivateEmail { members.append("\"is_private_email\":\"\(isPrivateEmail)\"") }
        members.append("\"event_time\":\(eventTime)")
        return "{\(members.joined(separator: ","))}"
    }

    /// The claims in Apple's order and spelling: compact, and `events` a string that holds the event object.
    package func claims(issuer: String) -> String {
        claims(issuer: issuer, events: JSONValue.quoted(eventObject))
    }

    /// The claims with another `events`, given as JSON: the object itself as in the documentation, an array, or anything.
    package func claims(issuer: String, events: String) -> String {
        "{\"iss\":\(JSONValue.quoted(issuer)),\"aud\":\(JSONValue.quoted(app)),\"exp\":\(issuedAt &+ 86_400),"
            + "\"iat\":\(issuedAt),\"jti\":\(JSONValue.quoted(id)),\"events\":\(events)}"
    }
}
