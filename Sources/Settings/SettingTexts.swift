import Basics

/// The text of every setting that some source sets, with the problems found on the way.
struct SettingTexts {
    /// A text and where it comes from.
    struct Sourced {
        var text: String
        var origin: SettingOrigin
        var isList = false
    }

    var problems: [String] = []
    /// The settings whose text is no value of theirs.
    private(set) var malformed: Set<SettingKey> = []
    /// Whether libpq finds a server or a database in its own variables.
    let hasLibpqEnvironment: Bool
    private var texts: [SettingKey: Sourced] = [:]

    init(_ sources: SettingsSources) {
        let libpqNames = ["PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"]
        hasLibpqEnvironment = libpqNames.contains { sources.environment[$0]?.isEmpty == false }
        if let path = sources.configurationFile { read(file: path, sources.readFile) }
        read(environment: sources.environment, sources.readFile)
        for (key, text) in sources.flags {
            texts[key] = Sourced(text: text, origin: .flag(key.flag))
        }
    }

    func text(of key: SettingKey) -> Sourced? {
        texts[key]
    }

    /// The parsed value, or nil if nobody sets it or it is malformed; then that is a problem.
    mutating func value<Value>(
        _ key: SettingKey,
        _ parse: (String) throws(MalformedValue) -> Value
    ) -> Value? {
        guard let sourced = texts[key] else { return nil }
        let name = sourced.origin.name(of: key)
        if sourced.isList, key != .apps {
            malformed.insert(key)
            problems.append("\(name) takes one value, not a list")
            return nil
        }
        do throws(MalformedValue) {
            return try parse(sourced.text)
        } catch {
            malformed.insert(key)
            if let plainAdvice = error.plainAdvice, Unshown.holdsSecret(sourced.text) {
                problems.append("\(name) is \(Self.quoted(sourced.text)): \(plainAdvice)")
            } else if key.isSecret || error.plainAdvice != nil {
                problems.append("\(name): \(error.advice)")
            } else {
                problems.append("\(name) is \(Self.quoted(sourced.text)): \(error.advice)")
            }
            return nil
        }
    }

    mutating func assign<Value>(
        _ key: SettingKey,
        to value: inout Value,
        _ parse: (String) throws(MalformedValue) -> Value
    ) {
        if let parsed = self.value(key, parse) { value = parsed }
    }

    private mutating func read(
        file path: String,
        _ readFile: (String) throws(FileReadingError) -> [UInt8]
    ) {
        let file: ConfigurationFile
        do {
            file = try ConfigurationFile(parsing: try readFile(path))
        } catch let error as YAMLError {
            problems.append("\(path), line \(error.line): \(error.cause)")
            return
        } catch {
            problems.append("--config \(Unshown.shown(path)): \(error)")
            return
        }
        for (name, item) in file.items.sorted(by: { $0.value.line < $1.value.line }) {
            guard let key = SettingKey(rawValue: name) else {
                // Of a group, everything may be commented out.
                if item.text.isEmpty, Self.isGroup(name) { continue }
                let guess = KeyGuess.nearest(to: name, among: SettingKey.allCases.map(\.rawValue))
                problems.append("\(path), line \(item.line): unknown setting \(Self.quoted(name))\(Self.advice(guess))")
                continue
            }
            if item.text.isEmpty { continue }
            texts[key] = Sourced(
                text: item.text,
                origin: .file(path: path, line: item.line),
                isList: item.isList
            )
        }
    }

    private mutating func read(
        environment: [String: String],
        _ readFile: (String) throws(FileReadingError) -> [UInt8]
    ) {
        if let text = environment["DATABASE_URL"], !text.isEmpty, texts[.databaseURL] == nil {
            texts[.databaseURL] = Sourced(text: text, origin: .environment("DATABASE_URL"))
        }
        var known: Set<String> = []
        for key in SettingKey.allCases {
            known.insert(key.environmentName)
            if let text = environment[key.environmentName], !text.isEmpty {
                texts[key] = Sourced(text: text, origin: .environment(key.environmentName))
            }
            guard let variable = key.environmentFileName else { continue }
            known.insert(variable)
            if let path = environment[variable], !path.isEmpty {
                read(secret: key, variable: variable, path: path, environment, readFile)
            }
        }
        let ours = environment.keys.filter { $0.hasPrefix(SettingKey.environmentPrefix) }
        for name in ours.sorted() where !known.contains(name) {
            let guess = KeyGuess.nearest(to: name, among: known.sorted())
            problems.append("unknown setting \(Self.quoted(name)) in the environment\(Self.advice(guess))")
        }
    }

    private mutating func read(
        secret key: SettingKey,
        variable: String,
        path: String,
        _ environment: [String: String],
        _ readFile: (String) throws(FileReadingError) -> [UInt8]
    ) {
        if let text = environment[key.environmentName], !text.isEmpty {
            problems.append("\(key.environmentName) and \(variable) are both set: keep one of them")
            return
        }
        do throws(FileReadingError) {
            let bytes = try readFile(path)
            guard var text = String(validating: bytes, as: UTF8.self)?[...] else {
                problems.append("\(variable): \(Unshown.shown(path)) is not text")
                return
            }
            while let last = text.last, last.isNewline { text.removeLast() }
            guard !text.isEmpty else {
                problems.append("\(variable): \(Unshown.shown(path)) is empty")
                return
            }
            texts[key] = Sourced(text: String(text), origin: .secretFile(variable: variable))
        } catch {
            problems.append("\(variable): \(Unshown.shown(path)): \(error)")
        }
    }

    /// Whether there are settings whose names begin with this one: `keys` of `keys_url`.
    private static func isGroup(_ name: String) -> Bool {
        SettingKey.allCases.contains { $0.rawValue.hasPrefix(name + "_") }
    }

    private static func advice(_ guess: String?) -> String {
        if let guess { ": did you mean \(guess)?" } else { ": siwad config lists the known ones" }
    }

    /// Cut to a sane length, control characters replaced; masked if it looks like a secret that went astray.
    private static func quoted(_ text: String) -> String {
        guard !Unshown.holdsSecret(text) else { return "“\(Unshown.mask)”" }
        let visible = text.unicodeScalars.prefix(80).map { $0.properties.generalCategory == .control ? "�" : $0 }
        return "“" + String(String.UnicodeScalarView(visible)) + (text.unicodeScalars.count > 80 ? "…”" : "”")
    }
}
