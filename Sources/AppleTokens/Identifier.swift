import Basics

/// A text that names one thing in Apple's or the application's vocabulary and is never looked into.
///
/// Two are equal when their bytes are: Swift's `String` takes canonically equivalent spellings for equal, PostgreSQL
/// doesn't, and the two must agree on who is who. The order is that of the bytes, which is PostgreSQL's `COLLATE "C"`.
package protocol Identifier: RawRepresentable, Hashable, Comparable, Sendable, CustomStringConvertible
where RawValue == String {
    /// Takes any text; what it must look like is the business of whoever reads it.
    init(rawValue: String)
}

extension Identifier {
    /// Takes any text; what it must look like is the business of whoever reads it.
    package init(_ text: String) {
        self.init(rawValue: text)
    }

    /// The text itself.
    package var description: String { rawValue }

    /// Equal by bytes.
    package static func == (lhs: Self, rhs: Self) -> Bool {
        lhs.rawValue.hasSameBytes(as: rhs.rawValue)
    }

    /// In the order of the bytes.
    package static func < (lhs: Self, rhs: Self) -> Bool {
        lhs.rawValue.utf8.lexicographicallyPrecedes(rhs.rawValue.utf8)
    }

    /// Hashes the text; equal bytes have equal hashes.
    package func hash(into hasher: inout Hasher) {
        hasher.combine(rawValue)
    }
}

/// An Apple developer team: ten characters of A–Z and 0–9. A `sub` means a person only together with its team.
package struct TeamID: Identifier {
    /// The ten characters.
    package let rawValue: String

    /// Takes any text; ``AudienceMap`` checks the shape.
    package init(rawValue: String) { self.rawValue = rawValue }
}

/// The primary App ID of an app group, a bundle identifier: consent is given and revoked for the whole group.
package struct AppID: Identifier {
    /// The bundle identifier.
    package let rawValue: String

    /// Takes any text; ``AudienceMap`` checks the shape.
    package init(rawValue: String) { self.rawValue = rawValue }
}

/// What an application signs in with: the primary App ID, another App ID of its group, or a Services ID.
package struct ClientID: Identifier {
    /// The bundle identifier or Services ID.
    package let rawValue: String

    /// Takes any text; ``AudienceMap`` checks the shape.
    package init(rawValue: String) { self.rawValue = rawValue }
}

/// Apple's name for a person (`sub`), the same in all apps of a team and another in every other team; opaque.
package struct Subject: Identifier {
    /// 1…256 bytes when it comes from a verified notification.
    package let rawValue: String

    /// Takes any text; ``NotificationVerifier`` checks the length.
    package init(rawValue: String) { self.rawValue = rawValue }
}

/// The name of one notification (`jti`), by which duplicates are known.
package struct NotificationID: Identifier {
    /// 1…256 bytes when it comes from a verified notification.
    package let rawValue: String

    /// Takes any text; ``NotificationVerifier`` checks the length.
    package init(rawValue: String) { self.rawValue = rawValue }
}
