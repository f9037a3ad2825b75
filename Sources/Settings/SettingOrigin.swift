/// Where a value in force comes from.
package enum SettingOrigin: Sendable, Hashable, CustomStringConvertible {
    /// A flag of the command line.
    case flag(String)
    /// A variable of the environment.
    case environment(String)
    /// The file that an environment variable names.
    case secretFile(variable: String)
    /// The configuration file, with the line.
    case file(path: String, line: Int)
    /// Nobody set it.
    case unset

    /// As `siwad config` prints it: `--listen`, `SIWAD_LISTEN`, `siwad.yaml:3`, `default`.
    package var description: String {
        switch self {
        case .flag(let name): name
        case .environment(let name): name
        case .secretFile(let variable): variable
        case .file(let path, let line): "\(path):\(line)"
        case .unset: "default"
        }
    }

    /// The setting as an error message names it, so that one knows where to correct it.
    func name(of key: SettingKey) -> String {
        switch self {
        case .flag(let name): name
        case .environment(let name): name
        case .secretFile(let variable): "the file that \(variable) names"
        case .file(let path, let line): "\(key.rawValue) (\(path), line \(line))"
        case .unset: key.environmentName
        }
    }
}
