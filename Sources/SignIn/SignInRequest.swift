package import AppleTokens
package import Basics
import JOSE

/// A request to sign a person in, parsed and within its bounds. Nothing of it is ever printed.
package struct SignInRequest: Sendable, CustomReflectable, CustomStringConvertible {
    /// The session that the application opens with the sign-in.
    package struct Session: Sendable, Equatable {
        package enum Expiry: Sendable, Equatable {
            case after(Duration)
            case at(WallTime)
        }

        /// 1…256 bytes: an identifier or a digest, made by the backend.
        package let id: String
        /// nil: it doesn't expire.
        package let expiry: Expiry?
    }

    /// What the application says of the device; kept for support.
    package struct Device: Sendable, Equatable {
        package let platform: String?
        package let model: String?
        package let label: String?
    }

    /// The largest body in bytes.
    package static let largestBody = 65_536

    package let client: ClientID
    /// nil in the flow with a code only.
    package let identityToken: [UInt8]?
    package let authorizationCode: String?
    /// As the backend issued it, before any hashing.
    package let nonce: String?
    /// Only if the authorization request had one: on the web.
    package let redirectURI: String?
    package let name: PersonName?
    package let session: Session?
    package let device: Device?
    /// The header `Idempotency-Key`.
    package let idempotencyKey: String?

    package var description: String { "sign-in to \(client)" }
    package var customMirror: Mirror { Mirror(self, children: [:]) }
}

// MARK: - Parsing

extension SignInRequest {
    /// Members of other names are ignored; a member that is null counts as absent.
    ///
    /// - Throws: `malformed-request` that names the member.
    package init(parsing body: [UInt8], idempotencyKey: String?) throws(Problem) {
        let members = try RequestMembers(parsing: body)
        client = ClientID(try members.requiredText("client_id", 1...255))
        identityToken = try members.text("identity_token", 1...16_384).map { Array($0.utf8) }
        authorizationCode = try members.text("authorization_code", 1...1_024, visible: true)
        nonce = try members.text("nonce", 8...256, visible: true)
        redirectURI = try members.text("redirect_uri", 1...2_000, visible: true)
        name = try members.value("user").flatMap(Self.name)
        session = try members.object("session").map(Session.init)
        device = try members.object("device").map(Device.init)
        self.idempotencyKey = idempotencyKey
        if identityToken == nil, authorizationCode == nil {
            throw Problem(.malformedRequest, "Send identity_token, authorization_code, or both.")
        }
        if let redirectURI, !redirectURI.hasPrefix("https://") {
            throw Problem(.malformedRequest, "redirect_uri must begin with https://.")
        }
        if let idempotencyKey, !idempotencyKey.isVisible(16...128) {
            throw Problem(.malformedRequest, "Idempotency-Key must have 16 to 128 visible ASCII characters.")
        }
    }

    /// Android and web pages pass Apple's object as text.
    private static func name(_ user: JSONValue) throws(Problem) -> PersonName? {
        switch user {
        case .object: return PersonName(user)
        case .string(""): return nil
        case .string(let text):
            // The reason of the parser would describe a text that the device wrote.
            if let user = try? JSONValue(parsing: Array(text.utf8)), user.kind == .object { return PersonName(user) }
        case .null, .boolean, .number, .array: break
        }
        throw Problem(.malformedRequest, "user must be Apple's JSON object or its text.")
    }
}

extension SignInRequest.Session {
    fileprivate init(_ members: RequestMembers) throws(Problem) {
        id = try members.requiredText("id", 1...256)
        let seconds = try members.integer("expires_in", 1...100 * 365 * 86_400)
        let text = try members.text("expires_at", 1...64)
        switch (seconds, text) {
        case (nil, nil): expiry = nil
        case (let seconds?, nil): expiry = .after(.seconds(seconds))
        case (nil, let text?):
            guard let time = WallTime(rfc3339: text), time < .year10000 else {
                let detail =
                    "session.expires_at must be a time such as 2026-12-24T18:00:00Z, before the year 10000 in UTC."
                throw Problem(.malformedRequest, detail)
            }
            expiry = .at(time)
        case (_?, _?): throw Problem(.malformedRequest, "Send session.expires_in or session.expires_at, not both.")
        }
    }
}

extension WallTime {
    /// The first time that RFC 3339 can't express.
    fileprivate static let year10000 = WallTime(seconds: 253_402_300_800)

    /// Parses a `date-time` of RFC 3339 §5.6, but none of the other forms of ``init(iso8601:)``: a date or a number alone, or
    /// a time without `T` or without seconds.
    fileprivate init?(rfc3339 text: String) {
        let bytes = Array(text.utf8)
        guard bytes.count >= 20, [UInt8(ascii: "T"), UInt8(ascii: "t")].contains(bytes[10]),
            bytes[16] == UInt8(ascii: ":")
        else { return nil }
        self.init(iso8601: text)
    }
}

extension SignInRequest.Device {
    fileprivate init(_ members: RequestMembers) throws(Problem) {
        platform = try members.scalars("platform")
        model = try members.scalars("model")
        label = try members.scalars("label")
    }
}

/// An object of a request, whose members have bounds.
struct RequestMembers {
    private let object: JSONValue
    /// The name of the object and a dot; empty for the whole request.
    private let prefix: String

    init(parsing body: [UInt8]) throws(Problem) {
        do throws(JOSEError) {
            object = try JSONValue(parsing: body)
        } catch {
            throw Problem(.malformedRequest, "The body is not strict JSON: \(error).")
        }
        prefix = ""
        guard object.kind == .object else { throw Problem(.malformedRequest, "The body must be a JSON object.") }
    }

    private init(_ object: JSONValue, named name: String) {
        self.object = object
        prefix = name + "."
    }

    /// nil if it is absent or null.
    func value(_ name: String) -> JSONValue? {
        guard let value = object[name], value != .null else { return nil }
        return value
    }

    func object(_ name: String) throws(Problem) -> RequestMembers? {
        guard let value = value(name) else { return nil }
        guard value.kind == .object else { throw problem(name, "must be an object") }
        return RequestMembers(value, named: prefix + name)
    }

    /// - Parameters:
    ///   - length: in bytes.
    ///   - visible: only visible ASCII characters are allowed.
    func text(_ name: String, _ length: ClosedRange<Int>, visible: Bool = false) throws(Problem) -> String? {
        guard let value = value(name) else { return nil }
        guard let text = value.string else { throw problem(name, "must be a string") }
        guard visible ? text.isVisible(length) : length.contains(text.utf8.count) else {
            let unit = visible ? "visible ASCII characters" : "bytes"
            throw problem(name, "must have \(length.lowerBound) to \(length.upperBound) \(unit)")
        }
        return text
    }

    /// A text of at most 100 Unicode scalars.
    func scalars(_ name: String) throws(Problem) -> String? {
        guard let value = value(name) else { return nil }
        guard let text = value.string, text.unicodeScalars.count <= 100 else {
            throw problem(name, "must be a string of at most 100 characters")
        }
        return text
    }

    func integer(_ name: String, _ range: ClosedRange<Int64>) throws(Problem) -> Int64? {
        guard let value = value(name) else { return nil }
        guard let integer = value.integer, range.contains(integer) else {
            throw problem(name, "must be a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
        return integer
    }

    func requiredText(_ name: String, _ length: ClosedRange<Int>) throws(Problem) -> String {
        guard let text = try text(name, length) else { throw problem(name, "is missing") }
        return text
    }

    private func problem(_ name: String, _ rule: String) -> Problem {
        Problem(.malformedRequest, "\(prefix)\(name) \(rule).")
    }
}

extension String {
    /// True if it has as many visible ASCII characters, and no others.
    fileprivate func isVisible(_ length: ClosedRange<Int>) -> Bool {
        length.contains(utf8.count) && utf8.allSatisfy { 0x21...0x7E ~= $0 }
    }
}
