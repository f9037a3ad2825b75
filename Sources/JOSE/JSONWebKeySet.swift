/// The usable keys of a JWK set (RFC 7517 §5), and why the others are not.
public struct JSONWebKeySet: Sendable, Hashable {
    /// A key that was passed over.
    public struct IgnoredKey: Sendable, Hashable {
        /// Its `kid`, if it has one of the form that is accepted.
        public let keyID: String?
        /// Why it can't be used, as a clause: "use is not sig".
        public let reason: String
    }

    /// The most keys that a set may hold.
    public static let maximumCount = 64

    /// The keys, in the order of the set, each `kid` once. Not empty.
    public let keys: [JSONWebKey]

    /// The keys that were passed over, in the order of the set.
    public let ignored: [IgnoredKey]

    /// A set of one's own.
    ///
    /// - Throws: `unusableKeySet` where it is empty, too large or has a `kid` twice.
    public init(_ keys: [JSONWebKey]) throws(JOSEError) {
        guard 1...Self.maximumCount ~= keys.count, Set(keys.map(\.keyID)).count == keys.count else {
            throw Self.unusable("a key set has 1 to 64 keys, each with a kid of its own")
        }
        self.keys = keys
        ignored = []
    }

    /// Parses a key set. A key that can't be used is passed over with a reason; a `kid` that several RSA keys share selects
    /// none of them.
    ///
    /// - Throws: `malformedJSON`; `unusableKeySet` where it is JSON but no key set, too large, or without one usable key.
    public init(parsing json: [UInt8]) throws(JOSEError) {
        guard let members = try JSONValue(parsing: json)["keys"]?.array else {
            throw Self.unusable("this is not a key set: a JSON object with an array named keys is expected")
        }
        guard members.count <= Self.maximumCount else { throw Self.unusable("the key set has more than 64 keys") }
        var uses: [String: Int] = [:]
        for member in members where member["kty"]?.string == "RSA" {
            if let keyID = member["kid"]?.string { uses[keyID, default: 0] += 1 }
        }
        var keys: [JSONWebKey] = []
        var ignored: [IgnoredKey] = []
        for member in members {
            do throws(JOSEError) {
                let key = try JSONWebKey(member)
                guard uses[key.keyID] == 1 else {
                    throw JOSEError(code: .unusableKey, message: "several keys have this kid")
                }
                keys.append(key)
            } catch {
                let keyID = member["kid"]?.string.flatMap { JWSHeader.isKeyID($0) ? $0 : nil }
                ignored.append(IgnoredKey(keyID: keyID, reason: error.message))
            }
        }
        guard !keys.isEmpty else { throw Self.unusable("the key set has no usable key") }
        self.keys = keys
        self.ignored = ignored
    }

    /// The key with this `kid`.
    public func key(_ keyID: String) -> JSONWebKey? {
        keys.first { $0.keyID == keyID }
    }

    /// The usable keys as compact JSON: what a key endpoint serves.
    public var json: String {
        "{\"keys\":[" + keys.map(\.json).joined(separator: ",") + "]}"
    }

    private static func unusable(_ message: String) -> JOSEError {
        JOSEError(code: .unusableKeySet, message: message)
    }
}
