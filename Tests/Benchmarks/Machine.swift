import FoundationEssentials
import Glibc

/// The machine that the figures were measured on.
enum Machine {
    /// One line: processor, cores, memory, kernel.
    static var description: String {
        let kernel = read("/proc/sys/kernel/osrelease").split(separator: "\n").first ?? ""
        let model = field("model name", of: "/proc/cpuinfo")
        return "\(model), \(cores) cores, \(mebibytes / 1_024) GiB, Linux \(kernel)"
    }

    /// Memory in MiB.
    static var mebibytes: Int {
        (Int(field("MemTotal", of: "/proc/meminfo").split(separator: " ").first ?? "") ?? 0) / 1_024
    }

    static var cores: Int { sysconf(Int32(_SC_NPROCESSORS_ONLN)) }

    /// The content of a file in `/proc`; empty if the file does not exist.
    static func read(_ path: String) -> String {
        // The process may have ended.
        (try? String(contentsOfFile: path, encoding: .utf8)) ?? ""
    }

    /// The value after `name:` in a file with one such pair per line.
    static func field(_ name: String, of path: String) -> String {
        for line in read(path).split(separator: "\n") {
            let parts = line.split(separator: ":", maxSplits: 1)
            guard parts.count == 2, parts[0].filter({ $0 != "\t" }).hasPrefix(name) else { continue }
            return String(parts[1].drop { $0 == " " || $0 == "\t" })
        }
        return "unknown"
    }
}

/// Processor time and memory of a process and its children.
struct ProcessFigures {
    let processID: Int32

    /// Processor time so far in microseconds, of the process and all its children, including ended ones.
    var processorMicroseconds: Double {
        let family = [processID] + children
        return family.reduce(0) { $0 + ticks(of: $1) } * 1_000_000 / Double(sysconf(Int32(_SC_CLK_TCK)))
    }

    /// Resident memory in MiB, of the process alone.
    var residentMebibytes: Double {
        let field = Machine.field("VmRSS", of: "/proc/\(processID)/status").split(separator: " ").first
        return (field.flatMap { Double($0) } ?? 0) / 1_024
    }

    private var children: [Int32] {
        Machine.read("/proc/\(processID)/task/\(processID)/children").split(separator: " ").compactMap { Int32($0) }
    }

    /// User and system time, for the process itself including the children that it waited for: fields 14 to 17 of
    /// `stat` in proc(5). Fields are counted from the end of the name, which may contain any character.
    private func ticks(of id: Int32) -> Double {
        let stat = Machine.read("/proc/\(id)/stat")
        guard let name = stat.lastIndex(of: ")") else { return 0 }
        let fields = stat[stat.index(after: name)...].split(separator: " ").compactMap { Double($0) }
        // The state is not a number, so field 4 of the file is the first here.
        let times = fields.dropFirst(10).prefix(id == processID ? 4 : 2)
        return times.reduce(0, +)
    }
}
