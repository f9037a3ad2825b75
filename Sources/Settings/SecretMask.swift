import Basics

/// Masks everything in a libpq connection string that is not known to be harmless.
enum SecretMask {
    private static let mask = Redaction.mask
    /// libpq's keywords that hold no secret (libpq, "Parameter Key Words").
    private static let harmless: Set<String> = [
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname",
        "fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "host", "hostaddr", "keepalives",
        "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname", "load_balance_hosts",
        "max_protocol_version", "min_protocol_version", "oauth_client_id", "oauth_issuer", "oauth_scope",
        "passfile", "port", "replication", "require_auth", "requirepeer", "requiressl", "service", "servicefile",
        "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode", "sslcompression", "sslcrl",
        "sslcrldir", "sslkey", "sslkeylogfile", "sslmode", "sslnegotiation", "sslrootcert", "sslsni",
        "target_session_attrs", "tcp_user_timeout", "user",
    ]
    /// Keywords that may hold a secret. `options` can set any parameter of an extension.
    private static let secret: Set<String> = [
        "oauth_client_secret", "options", "password", "scram_client_key", "scram_server_key", "sslpassword",
    ]

    /// The text with every part masked that may hold a secret or a piece of one: a password that is not percent-encoded can
    /// spill into any part of a URI. A malformed text is masked as a whole.
    static func masked(conninfo text: String) -> String {
        guard let scheme = text.firstRange(of: "://"), !text[..<scheme.lowerBound].contains("=") else {
            return maskedKeywords(text)
        }
        return String(text[..<scheme.upperBound]) + maskedURI(text[scheme.upperBound...])
    }

    /// One keyword with its value. After a masked one, an unknown keyword may be the rest of the secret.
    private static func shown(
        _ name: Substring,
        _ text: some StringProtocol,
        value: some StringProtocol,
        _ isMasked: inout Bool
    ) -> String {
        // A malformed escape keeps its percent sign, so that the name is unknown and its value masked.
        let keyword = name.percentDecoded ?? String(name)
        if harmless.contains(keyword), isPlain(value) { return String(text) }
        let isKnown = harmless.contains(keyword) || secret.contains(keyword)
        let isNameShown = isKnown || !isMasked && isWord(keyword)
        isMasked = true
        return isNameShown ? "\(name)=\(mask)" : mask
    }

    /// True if a value holds nothing that looks like another parameter, or like an address after a password.
    private static func isPlain(_ value: some StringProtocol) -> Bool {
        !value.contains("=") && !value.contains("?") && !value.dropFirst().contains("@")
    }

    private static func isWord(_ text: String) -> Bool {
        !text.isEmpty && text.utf8.allSatisfy { UInt8(ascii: "a")...UInt8(ascii: "z") ~= $0 || $0 == UInt8(ascii: "_") }
    }
}

// MARK: - URIs

extension SecretMask {
    private static func maskedURI(_ rest: Substring) -> String {
        let query = queryStart(in: rest) ?? rest.endIndex
        guard let place = maskedPlace(rest[..<query]) else { return mask }
        guard query < rest.endIndex else { return place }
        var isMasked = false
        let fields = rest[query...].dropFirst().split(separator: "&", omittingEmptySubsequences: false).map { field in
            let name = field.prefix { $0 != "=" }
            return shown(name, field, value: field[name.endIndex...].dropFirst(), &isMasked)
        }
        return place + "?" + fields.joined(separator: "&")
    }

    /// The start of the parameters. A question mark before an @ may belong to a password, unless a known keyword follows.
    private static func queryStart(in rest: Substring) -> Substring.Index? {
        rest.indices.first { index in
            guard rest[index] == "?" else { return false }
            let tail = rest[index...].dropFirst()
            let name = tail.prefix { $0 != "=" }
            let keyword = name.percentDecoded ?? String(name)
            return !tail.contains("@") || harmless.contains(keyword) || secret.contains(keyword)
        }
    }

    /// User, hosts and database with the password masked; nil if one of them may hold a part of the password.
    private static func maskedPlace(_ text: Substring) -> String? {
        // The last @: a password that is not percent-encoded may hold @, / and ?.
        guard let at = text.lastIndex(of: "@") else { return isPlace(text) ? String(text) : nil }
        let login = text[..<at]
        let user = login.prefix { $0 != ":" }
        guard user.allSatisfy({ !"/?@&=".contains($0) }), isPlace(text[at...].dropFirst()) else { return nil }
        return user + (user.endIndex < login.endIndex ? ":" + mask : "") + text[at...]
    }

    /// True if a text is hosts with ports and a database, and nothing else.
    private static func isPlace(_ text: Substring) -> Bool {
        let hosts = text.prefix { $0 != "/" }
        let database = text[hosts.endIndex...].dropFirst()
        return database.allSatisfy { !"/?@&:".contains($0) }
            && hosts.split(separator: ",").allSatisfy { element in
                let name = element.first == "[" ? element.prefix { $0 != "]" } : element.prefix { $0 != ":" }
                let port = element[name.endIndex...].drop { $0 == "]" }
                return !name.contains { "?@&=".contains($0) }
                    && (port.isEmpty || port.first == ":" && port.dropFirst().allSatisfy(\.isNumber))
            }
    }
}

// MARK: - Keywords

extension SecretMask {
    private static func maskedKeywords(_ text: String) -> String {
        var fields: [String] = []
        var isMasked = false
        var rest = text[...].drop(while: \.isWhitespace)
        while !rest.isEmpty {
            guard let equals = rest.firstIndex(of: "=") else { return mask }
            let words = rest[..<equals].split(whereSeparator: \.isWhitespace)
            // A second word may be the rest of a password with a space.
            guard words.count == 1, let name = words.first else { return mask }
            rest = rest[rest.index(after: equals)...].drop(while: \.isWhitespace)
            let value = takeValue(from: &rest)
            fields.append(shown(name, "\(name)=\(value)", value: value, &isMasked))
            rest = rest.drop(while: \.isWhitespace)
        }
        return fields.joined(separator: " ")
    }

    private static func takeValue(from rest: inout Substring) -> String {
        let isQuoted = rest.first == "'"
        var value = ""
        if isQuoted { value.append(rest.removeFirst()) }
        while let character = rest.first, isQuoted || !character.isWhitespace {
            value.append(rest.removeFirst())
            if character == "\\", let escaped = rest.first {
                value.append(escaped)
                rest.removeFirst()
            } else if isQuoted, character == "'" {
                break
            }
        }
        return value
    }
}

/// Masks tokens and URLs, which may hold a password, in texts that are printed or logged.
package enum Redaction {
    package static let mask = "****"

    package static func holdsSecret(_ text: some StringProtocol) -> Bool {
        text.contains("://") || holdsToken(text)
    }

    /// True if a text looks like a compact JWS (RFC 7515 §7.1) or the body of a request with one.
    ///
    /// Apple's identifiers of people and apps have dots too, but shorter parts.
    package static func holdsToken(_ text: some StringProtocol) -> Bool {
        if text.hasPrefix("eyJ") || text.contains("\"eyJ") { return true }
        let parts = text.split(separator: ".", omittingEmptySubsequences: false)
        return parts.count == 3 && parts[0].utf8.count >= 10 && parts.dropFirst().allSatisfy { $0.utf8.count >= 40 }
            && parts.allSatisfy {
                $0.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || $0 == "-" || $0 == "_") }
            }
    }

    package static func redacted(_ text: String) -> String {
        holdsSecret(text) ? mask : text
    }
}
