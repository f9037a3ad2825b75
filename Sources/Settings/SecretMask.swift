/// Masks what must not be seen of a libpq connection string.
enum SecretMask {
    private static let mask = "****"
    /// libpq's keywords that tell no secret (libpq, "Parameter Key Words"). What stands behind another word may be one.
    private static let harmless: Set<String> = [
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname",
        "fallback_application_name", "gssencmode", "gsslib", "host", "hostaddr", "keepalives", "keepalives_count",
        "keepalives_idle", "keepalives_interval", "krbsrvname", "options", "passfile", "port", "replication",
        "requirepeer", "requiressl", "service", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert",
        "sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslmode", "sslrootcert", "sslsni",
        "target_session_attrs", "tcp_user_timeout", "user",
    ]

    /// The text with every password replaced; one that can't be read is masked whole.
    ///
    /// What could be part of a password is taken for one: whoever forgot to encode it is not to find it in a terminal.
    static func masked(conninfo text: String) -> String {
        guard let scheme = text.firstRange(of: "://"), !text[..<scheme.lowerBound].contains("=") else {
            return maskedKeywords(text)
        }
        return String(text[..<scheme.upperBound]) + maskedURI(text[scheme.upperBound...])
    }

    private static func maskedURI(_ rest: Substring) -> String {
        // Whatever is between them: a password that was not encoded may hold @, / and ?.
        guard let at = rest.lastIndex(of: "@"), let colon = rest[..<at].firstIndex(of: ":") else {
            return maskedParameters(rest)
        }
        return maskedParameters(rest[..<colon]) + ":" + mask + maskedParameters(rest[at...])
    }

    /// Masks the parameters wherever they begin.
    private static func maskedParameters(_ text: Substring) -> String {
        var isMasked = false
        let fields = text.split(separator: "&", omittingEmptySubsequences: false).map { field -> String in
            if let value = secretValue(in: field) {
                isMasked = true
                return field[..<value] + mask
            }
            // What has no name belongs to a password that was not encoded.
            isMasked = isMasked && !field.contains("=")
            return isMasked ? mask : String(field)
        }
        return fields.joined(separator: "&")
    }

    /// Where the value begins of a secret parameter in a field, of which only the last part may be one.
    private static func secretValue(in field: Substring) -> Substring.Index? {
        for equals in field.indices where field[equals] == "=" {
            let name = field[..<equals]
            let start = name.lastIndex(of: "?").map(name.index(after:)) ?? name.startIndex
            if isSecret(percentDecoded(name[start...])) { return field.index(after: equals) }
        }
        return nil
    }

    /// Whether a parameter of a URI is a password, its name misspelt perhaps.
    private static func isSecret(_ name: String) -> Bool {
        let name = name.filter { !$0.isWhitespace }.lowercased()
        return name.contains("pass") && !harmless.contains(name)
    }

    /// Undoes escapes as libpq does before it looks a name up; what is no escape stays.
    private static func percentDecoded(_ text: Substring) -> String {
        var bytes: [UInt8] = []
        var rest = text.utf8[...]
        while let byte = rest.popFirst() {
            let digits = rest.prefix(2)
            if byte == UInt8(ascii: "%"), digits.count == 2, let value = UInt8(Substring(digits), radix: 16) {
                bytes.append(value)
                rest = rest.dropFirst(2)
            } else {
                bytes.append(byte)
            }
        }
        return String(decoding: bytes, as: UTF8.self)
    }

    private static func maskedKeywords(_ text: String) -> String {
        var shown: [String] = []
        var rest = text[...].drop(while: \.isWhitespace)
        while !rest.isEmpty {
            guard let equals = rest.firstIndex(of: "=") else { return mask }
            let words = rest[..<equals].split(whereSeparator: \.isWhitespace)
            // The rest of a password that holds a space, perhaps.
            guard words.count == 1, let name = words.first else { return mask }
            rest = rest[rest.index(after: equals)...].drop(while: \.isWhitespace)
            let value = takeValue(from: &rest)
            shown.append("\(name)=\(harmless.contains(String(name)) ? value : mask)")
            rest = rest.drop(while: \.isWhitespace)
        }
        return shown.joined(separator: " ")
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
