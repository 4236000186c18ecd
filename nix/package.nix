# imp-server; called with python3Packages.callPackage.
{
  lib,
  buildPythonApplication,
  flit-core,
  # runtime
  h11,
  jinja2,
  numba,
  numpy,
  safetensors,
  tokenizers,
  uvloop,
  wsproto,
  # tests
  anthropic,
  gguf,
  httpx,
  hypothesis,
  jsonschema,
  openai,
  prometheus-client,
  pytest-benchmark,
  pytestCheckHook,
  regex,
  websockets,
  # ours
  src,
  version,
  model ? null, # the GGUF file served when nothing else is asked for
}:
let
  pythonDependencies = ps: [
    ps.h11
    ps.jinja2
    ps.numba
    ps.numpy
    ps.safetensors
    ps.tokenizers
    ps.uvloop
    ps.wsproto
  ];
  pythonTestDependencies = ps: [
    ps.anthropic
    ps.gguf
    ps.httpx
    ps.hypothesis
    ps.jsonschema
    ps.openai
    ps.prometheus-client
    ps.pytest
    ps.pytest-benchmark
    ps.regex
    ps.websockets
  ];
in
buildPythonApplication {
  pname = "imp-server";
  inherit version src;
  pyproject = true;

  build-system = [ flit-core ];

  dependencies = pythonDependencies {
    inherit
      h11
      jinja2
      numba
      numpy
      safetensors
      tokenizers
      uvloop
      wsproto
      ;
  };

  # settings.py reads IMP_MODEL; --model and the caller's own IMP_MODEL come before it
  makeWrapperArgs = lib.optionals (model != null) [
    "--set-default"
    "IMP_MODEL"
    "${model}"
  ];

  nativeCheckInputs = [
    anthropic
    gguf
    httpx
    hypothesis
    jsonschema
    openai
    prometheus-client
    pytest-benchmark
    pytestCheckHook
    regex
    websockets
  ];
  enabledTestPaths = [ "tests" ];
  disabledTestPaths = [
    # these read files that are no part of the package's source, or ask pip for something
    "tests/packaging"
    # clients and peers that are no part of nixpkgs, or a browser
    "tests/clients"
    "tests/real/test_vectors.py"
    "tests/real/test_soak.py"
    "tests/test_bench.py"
    "tests/test_docs.py"
    "tests/test_gate.py"
    "tests/http/test_matrix.py"
    # long, and no different in a sandbox
    "tests/cpu"
    # compiles kernels with NVIDIA's packages
    "tests/gpu"
    "tests/constrain"
    "tests/chat/formats"
    "tests/http/test_forced_calls.py"
    "tests/http/test_thinking_limits.py"
    "tests/http/test_thinking_matrix.py"
    "tests/sched/test_schedules.py"
    "tests/weights/test_weights_fuzz.py"
  ];
  disabledTestMarks = [ "slow" ];

  # no network and no home here: the compiled kernels go to the build's own folder, the real model comes from the store
  preCheck = ''
    export HOME=$TMPDIR IMP_CACHE_DIR=$TMPDIR/imp
    ${lib.optionalString (model != null) "export IMP_TEST_SMOLLM2=${model}"}
  '';

  # The default model's kernels as machine code for the processor this is built on; any other one compiles its own.
  postCheck = lib.optionalString (model != null) ''
    IMP_CACHE_DIR=$TMPDIR/prebuilt $out/bin/imp-server --check --model ${model}
    cp -r $TMPDIR/prebuilt/kernels $(dirname $out/lib/python*/site-packages/imp/machine_code.py)/prebuilt
  '';

  pythonImportsCheck = [ "imp" ];

  passthru = {
    inherit pythonDependencies pythonTestDependencies;
  };

  meta = {
    description = "LLM inference server in one process";
    mainProgram = "imp-server";
    license = lib.licenses.asl20;
    platforms = lib.platforms.linux;
  };
}
