#!/usr/bin/env python3
"""Checks the compiled CUDA kernels without a GPU.

usage: static_gate.py KERNELS.CU.LOG KERNELS.CU.O

Reads what ptxas said (registers, spills) and, where cuobjdump and nvdisasm are found, the machine code: no local memory, no
atomics or reductions (they would make sums depend on who comes first), 128-bit loads, integer dot products and matrix
instructions in the kernels of products and of attention, 128-bit loads and stores in those that write F16 matrices. Prints one JSON line; ends with 1 if a rule is broken.
"""
import json
import os
import re
import shutil
import subprocess
import sys


def find_tool(name):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for folder in (os.path.join(root, 'build', 'cuda', 'bin'), '/usr/local/cuda/bin'):
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return shutil.which(name)


def read_log(path):
    """The kernels compiled, spilled bytes in total, and the most registers: nvcc runs several ptxas at once, whose lines mix."""
    text = open(path).read()
    compiled = re.findall(r"Compiling entry function '(\w+)' for '(sm_\d+)'", text)
    spills = sum(int(n) for n in re.findall(r'(\d+) bytes spill stores', text))
    spills += sum(int(n) for n in re.findall(r'(\d+) bytes spill loads', text))
    registers = [int(n) for n in re.findall(r'Used (\d+) registers', text)]
    return compiled, spills, max(registers, default=0)


def read_code(path):
    """Counts of instructions, by (architecture, kernel)."""
    tool = find_tool('cuobjdump')
    disassembler = find_tool('nvdisasm')
    if tool is None or disassembler is None:
        return None
    environment = dict(os.environ, PATH=os.path.dirname(disassembler) + ':' + os.environ['PATH'])
    code = subprocess.run([tool, '-sass', path], env=environment, capture_output=True, text=True, check=True).stdout
    counts = {}
    architecture = kernel = None
    for line in code.splitlines():
        if line.startswith('arch = '):
            architecture = line[7:].strip()
        elif match := re.search(r'Function : (\w+)', line):
            kernel = match.group(1)
            counts[architecture, kernel] = {}
        elif kernel and (match := re.match(r'\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+ )?([A-Z0-9_.]+)', line)):
            of_kernel = counts[architecture, kernel]
            of_kernel[match.group(1)] = of_kernel.get(match.group(1), 0) + 1
    return counts


def count(of_kernel, pattern):
    return sum(n for name, n in of_kernel.items() if re.match(pattern, name))


def main():
    log, code = sys.argv[1:3]
    broken = []
    compiled, spills, registers = read_log(log)
    architectures = sorted({architecture for _, architecture in compiled})
    if not compiled:
        broken.append(f'{log} names no kernel')
    if spills:
        broken.append(f'{spills} bytes are spilled to local memory')
    result = {'architectures': len(architectures), 'spills': spills, 'registers_max': registers}
    counts = read_code(code)
    result['machine_code'] = counts is not None
    if counts is not None:
        atomics = local = 0
        for (architecture, kernel), of_kernel in sorted(counts.items()):
            where = f'{kernel} ({architecture})'
            n = count(of_kernel, r'(RED|ATOM|ATOMS|ATOMG)(\.|$)')
            atomics += n
            if n:
                broken.append(f'{where}: {n} atomic instructions')
            n = count(of_kernel, r'(LDL|STL)(\.|$)')
            local += n
            if n:
                broken.append(f'{where}: {n} accesses to local memory')
            if re.search('Dense(Weights|Inputs)Kernel', kernel):
                if not count(of_kernel, r'LDG\.E.*\.128'):
                    broken.append(f'{where}: no 128-bit loads')
                wide = count(of_kernel, r'STG\.E.*\.128')
                narrow = count(of_kernel, r'STG\.') - wide - count(of_kernel, r'STG\.E.*\.64')
                if narrow >= wide:
                    broken.append(f'{where}: {narrow} stores of fewer than 64 bits beside {wide} of 128')
            tiles = 'AttendTilesKernel' in kernel
            if 'ProductKernel' not in kernel and not tiles:
                continue
            if not count(of_kernel, r'LDG\.E.*\.128'):
                broken.append(f'{where}: no 128-bit loads')
            # Template arguments: rows, whether by mma, whether gate and up.
            by_mma = tiles or re.search(r'ProductKernelILi\d+ELb([01])E', kernel).group(1) == '1'
            if by_mma and not count(of_kernel, r'IMMA\.16832'):
                broken.append(f'{where}: no IMMA.16832')
            if not by_mma and not count(of_kernel, r'IDP\.?4A'):
                broken.append(f'{where}: no IDP4A')
        result['atomics'] = atomics
        result['local_accesses'] = local
    print(json.dumps(result))
    for line in broken:
        print(f'static_gate.py: {line}', file=sys.stderr)
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main())
