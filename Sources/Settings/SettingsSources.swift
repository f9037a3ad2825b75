package import Basics

/// The sources of settings: flags win over the environment, the environment over the file.
package struct SettingsSources: Sendable {
    package var flags: [SettingKey: String]
    package var environment: [String: String]
    package var configurationFile: String?
    package var readFile: FileReader
    /// Settings that are unset, whatever the sources say.
    package var ignored: Set<SettingKey> = []

    package init(
        flags: [SettingKey: String] = [:],
        environment: [String: String],
        configurationFile: String? = nil,
        readFile: @escaping FileReader = readFile(atPath:)
    ) {
        self.flags = flags
        self.environment = environment
        self.configurationFile = configurationFile
        self.readFile = readFile
    }
}

/// Where a value in force comes from. The description is what `siwad config` prints: `--listen`, `SIWAD_LISTEN`,
/// `credential database-url`, `siwad.yaml:3`, `default`.
package enum SettingOrigin: Sendable, Hashable, CustomStringConvertible {
    case flag(String)
    case environment(String)
    /// The file that an environment variable names.
    case secretFile(variable: String)
    /// A file that systemd passes to the service (`LoadCredential=`).
    case credential(String)
    case file(path: String, line: Int)
    case unset

    package var description: String {
        switch self {
        case .flag(let name), .environment(let name), .secretFile(let name): name
        case .credential(let name): "credential \(name)"
        case .file(let path, let line): "\(path):\(line)"
        case .unset: "default"
        }
    }

    /// The setting as an error names it, so that the reader knows where to correct it.
    func name(of key: SettingKey) -> String {
        switch self {
        case .flag(let name), .environment(let name): name
        case .secretFile(let variable): "the file that \(variable) names"
        case .credential(let name): "the credential \(name)"
        case .file(let path, let line): "\(key.rawValue) (\(path), line \(line))"
        case .unset: key.environmentName
        }
    }
}

/// The text of every setting that a source sets, and the problems found while reading the sources.
struct SettingTexts {
    struct Sourced {
        let text: String
        let origin: SettingOrigin
        var isList = false

        func value(of key: SettingKey) throws(MalformedValue) -> any Sendable {
            guard !isList || key.declaration.type.takesList else {
                let advice = "write one value, not a list"
                // What precedes @ may be a password.
                throw MalformedValue(advice: advice, plainAdvice: text.contains("@") ? advice : nil)
            }
            return try key.declaration.type.parse(text)
        }

        /// The malformed value in one line that names its source and the next step, and shows no secret.
        func problem(of key: SettingKey, _ error: MalformedValue) -> String {
            let name = origin.name(of: key)
            if let plainAdvice = error.plainAdvice, Redaction.holdsSecret(text) {
                return "\(name) is \(quoted(text)): \(plainAdvice)"
            }
            let isShown = !key.isSecret && error.plainAdvice == nil
            return isShown ? "\(name) is \(quoted(text)): \(error.advice)" : "\(name): \(error.advice)"
        }
    }

    private(set) var problems: [String] = []
    /// True if libpq finds a server or a database in its own variables.
    let hasLibpqEnvironment: Bool
    private var texts: [SettingKey: Sourced] = [:]

    init(_ sources: SettingsSources) {
        let libpqNames = ["PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"]
        hasLibpqEnvironment = libpqNames.contains { sources.environment[$0]?.isEmpty == false }
        if let path = sources.configurationFile { read(file: path, sources) }
        read(environment: sources)
        for (key, text) in sources.flags { texts[key] = Sourced(text: text, origin: .flag(key.flag)) }
        for key in sources.ignored { texts[key] = nil }
    }

    subscript(key: SettingKey) -> Sourced? { texts[key] }

    private mutating func read(file path: String, _ sources: SettingsSources) {
        let file: ConfigurationFile
        do {
            file = try ConfigurationFile(parsing: try sources.readFile(path))
        } catch let error as ConfigurationFileError {
            problems.append("\(path), line \(error.line), column \(error.column): \(error.cause)")
            return
        } catch {
            problems.append("--config \(Redaction.redacted(path)): \(error)")
            return
        }
        for (name, item) in file.items.sorted(by: { $0.value.line < $1.value.line }) {
            if let key = SettingKey(rawValue: name) {
                let origin = SettingOrigin.file(path: path, line: item.line)
                if !item.text.isEmpty { texts[key] = Sourced(text: item.text, origin: origin, isList: item.isList) }
            } else {
                let sameInEnvironment = SettingKey.allCases.first { $0.environmentName == name }
                let advice =
                    sameInEnvironment.map { "in a file its name is \($0.rawValue)" }
                    ?? advice(on: name, known: SettingKey.allCases.map(\.rawValue))
                problems.append("\(path), line \(item.line): unknown setting \(quoted(name)): \(advice)")
            }
        }
    }

    private mutating func read(environment sources: SettingsSources) {
        let environment = sources.environment.filter { !$0.value.isEmpty }
        if let text = environment["DATABASE_URL"], texts[.databaseURL] == nil {
            texts[.databaseURL] = Sourced(text: text, origin: .environment("DATABASE_URL"))
        }
        for key in SettingKey.allCases {
            let name = key.environmentName
            if let text = environment[name] { texts[key] = Sourced(text: text, origin: .environment(name)) }
            // A file that is not needed may be one that this user can't read.
            guard sources.flags[key] == nil, let variable = key.environmentFileName,
                let credential = key.credentialName
            else { continue }
            switch (environment[name], environment[variable], environment["CREDENTIALS_DIRECTORY"]) {
            case (_?, _?, _): problems.append("\(name) and \(variable) are both set: keep one of them")
            case (nil, let path?, _): read(secret: key, at: path, from: .secretFile(variable: variable), sources)
            case (nil, nil, let directory?):
                read(secret: key, at: "\(directory)/\(credential)", from: .credential(credential), sources)
            case (_, nil, _): break
            }
        }
        let known = SettingKey.allCases.flatMap { [$0.environmentName, $0.environmentFileName].compactMap(\.self) }
        let ours = sources.environment.keys.filter { $0.hasPrefix(SettingKey.environmentPrefix) }
        for name in ours.sorted() where !known.contains(name) {
            let advice = advice(on: name, known: known.sorted())
            problems.append("unknown setting \(quoted(name)) in the environment: \(advice)")
        }
    }

    private mutating func read(
        secret key: SettingKey,
        at path: String,
        from origin: SettingOrigin,
        _ sources: SettingsSources
    ) {
        let place = "\(origin): \(Redaction.redacted(path))"
        do throws(FileReadingError) {
            guard var text = String(validating: try sources.readFile(path), as: UTF8.self)?[...] else {
                problems.append("\(place) is not UTF-8: check that it is the right file")
                return
            }
            // Some editors begin a file with a byte order mark.
            if text.unicodeScalars.first == "\u{FEFF}" { text.unicodeScalars.removeFirst() }
            while let last = text.last, last.isNewline { text.removeLast() }
            guard !text.isEmpty else {
                problems.append("\(place) is empty: write the value into it")
                return
            }
            texts[key] = Sourced(text: String(text), origin: origin)
        } catch {
            if case .credential = origin, error == .noFile { return }
            problems.append("\(place): \(error)")
        }
    }
}

/// Quotes a text from a source: at most 80 characters, control characters replaced, masked if it looks like a secret.
private func quoted(_ text: String) -> String {
    guard !Redaction.holdsSecret(text) else { return "“\(Redaction.mask)”" }
    let visible = text.unicodeScalars.prefix(80).map { $0.properties.generalCategory == .control ? "�" : $0 }
    return "“" + String(String.UnicodeScalarView(visible)) + (text.unicodeScalars.count > 80 ? "…”" : "”")
}

/// The next step after an unknown name.
private func advice(on name: String, known: [String]) -> String {
    name.nearest(in: known).map { "did you mean \($0)?" } ?? "siwad config lists the known ones"
}
