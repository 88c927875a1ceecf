# Finds the libtorch inside a Python environment's torch wheel. find_package(Torch) is of no use there: on PyPI's wheel
# it stops with an error where there is no CUDA toolkit.
#
# Input, the first that is set: ORCA_PYTHON_EXECUTABLE, Python_EXECUTABLE, Python3_EXECUTABLE; else python3 of the path.
# Result: Libtorch_FOUND, Libtorch_VERSION, Libtorch_ROOT, Libtorch_INCLUDE_DIRS, and the imported targets
#   Libtorch::torch   c10, torch_cpu, torch: what a C++ program needs
#   Libtorch::python  the same with torch_python and torch's own pybind11, for a Python module (no libpython is linked)
foreach(candidate ORCA_PYTHON_EXECUTABLE Python_EXECUTABLE Python3_EXECUTABLE)
  if(NOT Libtorch_PYTHON AND ${candidate})
    set(Libtorch_PYTHON ${${candidate}})
  endif()
endforeach()
if(NOT Libtorch_PYTHON)
  find_program(Libtorch_PYTHON python3)
endif()

# Importing torch takes seconds; its folder and version can be had without.
execute_process(
  COMMAND ${Libtorch_PYTHON} -c "
import importlib.util, pathlib, re, sysconfig
spec = importlib.util.find_spec('torch')
root = pathlib.Path(spec.submodule_search_locations[0]) if spec else None
text = (root / 'version.py').read_text() if root else ''
found = re.search(r'__version__ = .([0-9.]+)', text)
print(root or '', found.group(1) if found else '', sysconfig.get_path('include'), sep='|')"
  OUTPUT_VARIABLE Libtorch_found OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_VARIABLE Libtorch_error RESULT_VARIABLE Libtorch_result)
if(Libtorch_result EQUAL 0)
  string(REPLACE "|" ";" Libtorch_found "${Libtorch_found}")
  list(POP_FRONT Libtorch_found Libtorch_ROOT Libtorch_VERSION Libtorch_PYTHON_INCLUDE_DIR)
endif()
if(Libtorch_ROOT)
  set(Libtorch_INCLUDE_DIRS ${Libtorch_ROOT}/include ${Libtorch_ROOT}/include/torch/csrc/api/include)
  set(Libtorch_LIBRARY ${Libtorch_ROOT}/lib/libtorch_cpu.so)
  if(NOT EXISTS ${Libtorch_LIBRARY})
    set(Libtorch_LIBRARY Libtorch_LIBRARY-NOTFOUND)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_LIBRARY Libtorch_ROOT VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE
    "${Libtorch_PYTHON} has no torch. Run: ${Libtorch_PYTHON} -m pip install torch ${Libtorch_error}")

if(Libtorch_FOUND AND NOT TARGET Libtorch::torch)
  foreach(name c10 torch_cpu torch torch_python)
    add_library(Libtorch::lib_${name} SHARED IMPORTED)
    set_target_properties(Libtorch::lib_${name} PROPERTIES
      IMPORTED_LOCATION ${Libtorch_ROOT}/lib/lib${name}.so IMPORTED_NO_SONAME FALSE)
  endforeach()
  add_library(Libtorch::torch INTERFACE IMPORTED)
  target_include_directories(Libtorch::torch SYSTEM INTERFACE ${Libtorch_INCLUDE_DIRS})
  target_compile_definitions(Libtorch::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D_GLOO)
  # libtorch.so is an empty shell around torch_cpu (and torch_cuda, which a CPU program need not load).
  target_link_libraries(Libtorch::torch INTERFACE Libtorch::lib_torch_cpu Libtorch::lib_c10)
  add_library(Libtorch::python INTERFACE IMPORTED)
  target_include_directories(Libtorch::python SYSTEM INTERFACE ${Libtorch_PYTHON_INCLUDE_DIR})
  target_link_libraries(Libtorch::python INTERFACE Libtorch::torch Libtorch::lib_torch_python)
endif()
