import AppleTokens
import Telemetry

extension Configuration {
    /// The fewest connections with which the daemon can work: one on which what comes in is stored, one on which what is in
    /// the spool is, and one for everything else.
    package var leastDatabaseConnections: Int { spoolDirectory == nil ? 2 : 3 }

    /// The configuration that these sources make: flags over environment over file over defaults.
    /// - Throws: Every unknown key and every malformed value.
    package init(from sources: SettingsSources) throws(SettingsError) {
        var texts = SettingTexts(sources)
        self.init()
        assign(from: &texts)
        checkPairs(&texts)
        entries = SettingKey.allCases.map { key in
            let sourced = texts.text(of: key)
            let text = sourced?.text ?? key.defaultText
            return Entry(
                key: key,
                text: Self.shown(text, of: key),
                origin: sourced?.origin ?? .unset,
                problem: texts.malformed.contains(key) ? .malformed : text == nil && key.isRequired ? .missing : nil
            )
        }
        if database == .libpqEnvironment, let index = entries.firstIndex(where: { $0.key == .databaseURL }) {
            entries[index] = Entry(key: .databaseURL, text: nil, origin: .environment("PG*"))
        }
        guard texts.problems.isEmpty else { throw SettingsError(problems: texts.problems, entries: entries) }
    }

    /// The text without what must not be seen. A key set and an issuer are URLs, and name no user.
    private static func shown(_ text: String?, of key: SettingKey) -> String? {
        guard let text else { return nil }
        switch key {
        case .databaseURL: return SecretMask.masked(conninfo: text)
        case .keysURL, .issuer: return text.contains("@") || Unshown.holdsToken(text) ? Unshown.mask : text
        default: return Unshown.shown(text)
        }
    }

    private mutating func assign(from texts: inout SettingTexts) {
        database =
            texts.value(.databaseURL) { text throws(MalformedValue) in
                Database.conninfo(try ValueParser.conninfo(text))
            } ?? (texts.hasLibpqEnvironment ? .libpqEnvironment : .notConfigured)
        apps = texts.value(.apps) { text throws(MalformedValue) in
            do throws(AudienceMapError) {
                return try AudienceMap(parsing: text)
            } catch {
                let plainAdvice = "write TEAMID/primary.app.id, such as A1B2C3D4E5/com.example.app"
                throw MalformedValue(error.description, plainAdvice: plainAdvice)
            }
        }
        assignEndpoints(from: &texts)
        assignTimes(from: &texts)
        assignLimits(from: &texts)
        texts.assign(.logLevel, to: &logLevel) { text throws(MalformedValue) in
            try ValueParser.word(text, as: LogLevel.self)
        }
        logFormat = texts.value(.logFormat) { text throws(MalformedValue) in
            try ValueParser.word(text, as: LogFormat.self)
        }
    }

    private mutating func assignEndpoints(from texts: inout SettingTexts) {
        texts.assign(.listen, to: &listen, HostAndPort.init(parsing:))
        texts.assign(.notificationPath, to: &notificationPath, ValueParser.urlPath)
        texts.assign(.operationsListen, to: &operationsListen, HostAndPort.init(parsing:))
        texts.assign(.keysURL, to: &keysURL, ValueParser.line)
        texts.assign(.issuer, to: &issuer, ValueParser.line)
        spoolDirectory = texts.value(.spoolDirectory, ValueParser.line)
        let certificate = texts.value(.tlsCertificate, ValueParser.line)
        let key = texts.value(.tlsKey, ValueParser.line)
        if let certificate, let key {
            tls = TLSFiles(certificate: certificate, key: key)
        }
    }

    private mutating func assignTimes(from texts: inout SettingTexts) {
        let day = Duration.seconds(86_400)
        let ranges: [(SettingKey, WritableKeyPath<Configuration, Duration>, ClosedRange<Duration>)] = [
            (.keysRefresh, \.keysRefresh, .milliseconds(100)...(day * 30)),
            (.keysRefreshFloor, \.keysRefreshFloor, .zero...day),
            (.keysMaximumAge, \.keysMaximumAge, .seconds(1)...(day * 36_500)),
            (.clockLeeway, \.clockLeeway, .zero...day),
            (.retention, \.retention, day...(day * 36_500)),
            (.sessionRetention, \.sessionRetention, .zero...(day * 36_500)),
            (.eraseAfter, \.eraseAfter, .zero...(day * 36_500)),
            (.shutdownGrace, \.shutdownGrace, .zero...day),
        ]
        for (key, path, range) in ranges {
            texts.assign(key, to: &self[keyPath: path]) { text throws(MalformedValue) in
                try ValueParser.duration(text, in: range)
            }
        }
    }

    private mutating func assignLimits(from texts: inout SettingTexts) {
        let ranges: [(SettingKey, WritableKeyPath<Configuration, Int>, ClosedRange<Int>)] = [
            (.databaseConnections, \.databaseConnections, 2...100),
            (.keysRefreshBurst, \.keysRefreshBurst, 1...1_000),
            (.batchLimit, \.batchLimit, 1...10_000),
            (.queueLimit, \.queueLimit, 1...1_000_000),
            (.deadLetterLimit, \.deadLetterLimit, 0...1_000_000_000),
        ]
        for (key, path, range) in ranges {
            texts.assign(key, to: &self[keyPath: path]) { text throws(MalformedValue) in
                try ValueParser.integer(text, in: range)
            }
        }
        texts.assign(.spoolLimit, to: &spoolLimit, ValueParser.size)
        texts.assign(.queueBytes, to: &queueBytes) { text throws(MalformedValue) in
            // At least the largest body.
            try ValueParser.size(text, in: 128 << 10...1 << 40)
        }
    }

    private func checkPairs(_ texts: inout SettingTexts) {
        if databaseConnections < leastDatabaseConnections, let sourced = texts.text(of: .spoolDirectory) {
            texts.problems.append(
                "\(sourced.origin.name(of: .spoolDirectory)) needs \(SettingKey.databaseConnections.environmentName) to be "
                    + "at least \(leastDatabaseConnections): what is in the spool is stored over a connection of its own"
            )
        }
        for (present, missing) in [(SettingKey.tlsCertificate, SettingKey.tlsKey), (.tlsKey, .tlsCertificate)] {
            guard let sourced = texts.text(of: present), texts.text(of: missing) == nil else { continue }
            texts.problems.append("\(sourced.origin.name(of: present)) needs \(missing.environmentName) too")
        }
    }
}
