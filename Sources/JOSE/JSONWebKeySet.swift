/// The usable keys of a JWK set (RFC 7517 §5), and why the others are not.
package struct JSONWebKeySet: Sendable, Hashable {
    /// A key that was passed over.
    package struct IgnoredKey: Sendable, Hashable {
        /// Its `kid`, if it has one of the form that is accepted.
        package let keyID: String?
        /// Why it can't be used, as a clause: "use is not sig".
        package let reason: String
    }

    /// The most keys that a set may hold.
    package static let maximumCount = 64

    /// The keys, in the order of the set, each `kid` once. Not empty.
    package let keys: [JSONWebKey]

    /// The keys that were passed over, in the order of the set.
    package let ignored: [IgnoredKey]

    /// A set of one's own.
    ///
    /// - Throws: `unusableKeySet` where it is empty, too large or has a `kid` twice.
    package init(_ keys: [JSONWebKey]) throws(JOSEError) {
        guard 1...Self.maximumCount ~= keys.count, Set(keys.map(\.keyID)).count == keys.count else {
            throw Self.unusable("a key set has 1 to 64 keys, each with a kid of its own")
        }
        self.keys = keys
        ignored = []
    }

    /// Parses a key set. A key that can't be used is passed over with a reason. A key that is listed again counts once, and
    /// what is no key for verifying with takes nothing from one that has the same `kid`; a `kid` that several usable keys
    /// share selects none of them.
    ///
    /// - Throws: `malformedJSON`; `unusableKeySet` where it is JSON but no key set, too large, or without one usable key.
    package init(parsing json: [UInt8]) throws(JOSEError) {
        guard let members = try JSONValue(parsing: json)["keys"]?.array else {
            throw Self.unusable("this is not a key set: a JSON object with an array named keys is expected")
        }
        guard members.count <= Self.maximumCount else { throw Self.unusable("the key set has more than 64 keys") }
        let candidates = members.map(Candidate.init)
        var materials: [String: Set<RSAPublicKey>] = [:]
        for case .usable(let key) in candidates { materials[key.keyID, default: []].insert(key.publicKey) }
        var keys: [JSONWebKey] = []
        var ignored: [IgnoredKey] = []
        for candidate in candidates {
            switch candidate {
            case .unusable(let key): ignored.append(key)
            case .usable(let key) where materials[key.keyID]?.count != 1:
                ignored.append(IgnoredKey(keyID: key.keyID, reason: "several keys have this kid"))
            case .usable(let key):
                if !keys.contains(key) { keys.append(key) }
            }
        }
        guard !keys.isEmpty else { throw Self.unusable("the key set has no usable key") }
        self.keys = keys
        self.ignored = ignored
    }

    /// The key with this `kid`.
    package func key(_ keyID: String) -> JSONWebKey? {
        keys.first { $0.keyID == keyID }
    }

    /// The usable keys as compact JSON: what a key endpoint serves.
    package var json: String {
        "{\"keys\":[" + keys.map(\.json).joined(separator: ",") + "]}"
    }

    /// A member of the set, looked at by itself.
    private enum Candidate {
        case usable(JSONWebKey)
        case unusable(IgnoredKey)

        init(_ member: JSONValue) {
            do throws(JOSEError) {
                self = .usable(try JSONWebKey(member))
            } catch {
                let keyID = member["kid"]?.string.flatMap { JWSHeader.isKeyID($0) ? $0 : nil }
                self = .unusable(IgnoredKey(keyID: keyID, reason: error.message))
            }
        }
    }

    private static func unusable(_ message: String) -> JOSEError {
        JOSEError(code: .unusableKeySet, message: message)
    }
}
