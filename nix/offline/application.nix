# buildPythonApplication: runs the build backend pyproject.toml names, writes the entry points, imports, runs pytest.
{
  lib,
  pkgs,
  site,
}:
{
  pname,
  version,
  src,
  build-system,
  dependencies,
  nativeCheckInputs,
  pythonImportsCheck,
  enabledTestPaths,
  disabledTestPaths,
  disabledTestMarks,
  makeWrapperArgs,
  preCheck,
  postCheck,
  passthru,
  meta,
  ...
}:
let
  python = "${pkgs.python}/bin/python3";
  path = import ./python-path.nix lib site;
  # --set-default NAME VALUE is the only wrapper argument there is
  defaults =
    args:
    if args == [ ] then
      ""
    else
      assert builtins.head args == "--set-default";
      "os.environ.setdefault('${builtins.elemAt args 1}', '${builtins.elemAt args 2}')\n"
      + defaults (lib.sublist 3 args);
in
pkgs.runCommand "${pname}-${version}"
  {
    inherit src meta;
    prelude = ''
      #!${python} -I
      import os, sys
      sys.path[:0] = "SITE:${path dependencies}".split(":")
      ${defaults makeWrapperArgs}
    '';
    passAsFile = [ "prelude" ];
  }
  ''
    cp -r $src source; chmod -R u+w source; cd source; mkdir ../dist
    PYTHONPATH=${path build-system} ${python} - <<'END'
    import importlib, tomllib
    backend = tomllib.load(open("pyproject.toml", "rb"))["build-system"]["build-backend"]
    importlib.import_module(backend).build_wheel("../dist")
    END
    mkdir -p $out/bin $out/${site}; unzip -q ../dist/*.whl -d $out/${site}
    ${python} -m compileall -q --invalidation-mode unchecked-hash $out/${site}

    ${python} - $out/${site}/*.dist-info/entry_points.txt <<'END'
    import configparser, os, sys
    out = os.environ["out"]
    prelude = open(os.environ["preludePath"]).read().replace("SITE", out + "/${site}")
    scripts = configparser.ConfigParser()
    scripts.read(sys.argv[1])
    for name, reference in scripts["console_scripts"].items():
        module, function = reference.split(":")
        with open(f"{out}/bin/{name}", "w") as file:
            file.write(f"{prelude}from {module} import {function}\nsys.exit({function}())\n")
        os.chmod(file.name, 0o755)
    END

    (cd /; PYTHONPATH=$out/${site}:${path dependencies} ${python} -c 'import ${builtins.concatStringsSep ", " pythonImportsCheck}')
    export PYTHONPATH=$out/${site}:${path (dependencies ++ nativeCheckInputs)}
    ${preCheck}
    ${python} -m pytest -p no:cacheprovider ${lib.escapeShellArgs enabledTestPaths} \
      ${lib.escapeShellArgs (map (p: "--ignore=${p}") disabledTestPaths)} \
      -m ${lib.escapeShellArg (lib.concatMapStringsSep " and " (m: "not ${m}") disabledTestMarks)}
    ${postCheck}
  ''
// {
  inherit pname version;
  propagated = dependencies;
}
// passthru
